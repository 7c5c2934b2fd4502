"""What has gone wrong with other dashboards must not go wrong here: each case is a test."""

import asyncio
import base64
import inspect
import io
import time
import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Holdfast, Run, admin
from holdfast.dashboard import ACTIONS, Access, Dashboard, Request, by_password, by_token
from holdfast.dashboard.actions import DEEDS
from holdfast.dashboard.assets import NAMES, address
from holdfast.dashboard.routes import PAGES
from holdfast.errors import ConfigError, DatabaseUnavailable
from holdfast.observe import Depth, Figures, Folded
from holdfast.testing.inline import run_due
from tests.dashboard.client import Client
from tests.dashboard.conftest import ALL, READ, board
from tests.dashboard.ground import SECRET, Shop
from tests.dashboard.test_pages import WORDS
from tests.servers import Postgres

NASTY = "<script>alert(1)</script>"
PASSWORD = "correct horse battery"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def every_path() -> list[str]:
    return [f"/{path}" for path in PAGES] + [f"/{part}/{name}" for name in DEEDS for part in ("ask", "do")]


# Who comes in


def test_a_dashboard_to_mount_cannot_be_made_without_saying_who_may_come_in(empty: Shop) -> None:
    """Flower, CVE-2022-30034: open to everybody unless somebody thinks of it."""
    with pytest.raises(TypeError):
        empty.hf.dashboard()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="access"):
        empty.hf.dashboard(access=None)  # type: ignore[arg-type]
    assert inspect.signature(Holdfast.dashboard).parameters["access"].default is inspect.Parameter.empty


def test_nothing_is_open_while_the_pages_are_closed(shop: Shop) -> None:
    """Flower, flower#1217: the API answered without a login. Here nothing does, files included."""
    for client in (Client(board(shop, lambda _request: None), colour) for colour in ("wsgi", "asgi")):
        for path in [*every_path(), "/static/x/app.js", "/nowhere", "/metrics"]:
            for ask in (client.get, client.post):
                answer = ask(path)
                assert answer.status == 403, path
                assert "send_receipt" not in answer.text


def test_every_path_asks_the_access_rule(empty: Shop) -> None:
    """Hangfire, GHSA-7rq6-7gv8-c37h: the default guard was lost in a refactoring."""
    asked: list[str] = []

    def rule(request: Request) -> Access | None:
        asked.append(request.path)
        return READ

    client = Client(board(empty, rule))
    paths = [*every_path(), *(f"/{address(name)}" for name in NAMES)]
    for ask in (client.get, client.post):
        asked.clear()
        for path in paths:
            ask(path)
        assert asked == paths


@pytest.mark.parametrize(
    "error", [ConfigError("region", "must be known", "eu"), DatabaseUnavailable("db1 is away"), KeyError("user")]
)
def test_what_the_access_rule_raises_is_for_the_log_alone(
    empty: Shop, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(request: Request) -> Access | None:
        raise error

    for colour in ("wsgi", "asgi"):
        caplog.clear()
        answer = Client(board(empty, rule), colour).get("/")
        assert (answer.status, answer.text) == (500, "The page failed. The log of the dashboard has the reason.")
        assert str(error) in caplog.text


def test_a_name_must_match_as_a_whole(empty: Shop) -> None:
    """Flower's unanchored e-mail pattern let in ada@example.com.evil.example: names are compared whole here."""
    client = Client(board(empty, hosts=["ops.example", "127.0.0.1"]))
    assert client.get("/", host="ops.example:8321").status == 200
    assert client.get("/", host="OPS.EXAMPLE").status == 200
    for host in ("ops.example.evil.example", "evil-ops.example", "127.0.0.1.evil.example", "", "ops.example@evil"):
        assert client.get("/", host=host).status == 421, host


@pytest.mark.parametrize(
    "allowed, host",
    [
        ("ops.example:8321", "ops.example:8321"),
        ("[::1]", "[::1]:80"),
        ("::1", "[::1]"),
        ("OPS.example.", "ops.example"),
    ],
)
def test_a_name_may_be_allowed_as_it_stands_in_the_browser(empty: Shop, allowed: str, host: str) -> None:
    client = Client(board(empty, hosts=[allowed]))
    assert [client.get("/", host=one).status for one in (host, "evil.example")] == [200, 421]


def test_a_name_that_was_rebound_to_this_machine_is_refused(shop: Shop) -> None:
    """DNS rebinding: a page of evil.example whose name leads to 127.0.0.1 is of another origin only by its name."""
    client = Client(board(shop, hosts=["localhost", "127.0.0.1", "::1"]))
    answer = client.post("/do/pause", {"queue": "mail"}, host="evil.example", origin="http://evil.example")
    assert answer.status == 421
    assert client.get("/", host="[::1]:8321").status == 200
    assert not [one for one in shop.hf.pauses() if one.name == "mail"]


def test_a_password_lets_in_and_everything_else_asks_for_it(empty: Shop) -> None:
    client = Client(board(empty, by_password("ada", PASSWORD, actions=["pause"])))
    for wrong in (
        "",
        basic("ada", "wrong password"),
        basic("grace", PASSWORD),
        "Basic !!!",
        "Bearer x",
        basic("ada", ""),
    ):
        answer = client.get("/", authorization=wrong)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert client.get("/", authorization=basic("ada", PASSWORD)).status == 200
    client.post("/do/pause", {"queue": "mail"}, authorization=basic("ada", PASSWORD))
    [line] = empty.hf.store.run(admin.audit())
    assert line.actor == "ada"


def test_a_token_lets_programs_and_browsers_in(empty: Shop) -> None:
    client = Client(board(empty, by_token("0123456789abcdef")))
    assert client.get("/", authorization="Bearer 0123456789abcdef").status == 200
    assert client.get("/", authorization=basic("anybody", "0123456789abcdef")).status == 200
    for wrong in ("Bearer 0123456789abcde", "Bearer", "0123456789abcdef", "Token 0123456789abcdef"):
        assert client.get("/", authorization=wrong).status == 401


def test_a_secret_that_is_no_secret_is_refused() -> None:
    for make in (lambda: by_password("ada", "short"), lambda: by_token("short")):
        with pytest.raises(ConfigError, match="at least 8") as refused:
            make()
        assert "short" not in str(refused.value)


def test_a_rule_that_answers_something_else_or_fails_lets_nobody_in(shop: Shop) -> None:
    for strange in (True, "read", {"actions": "all"}, 1):
        answer = Client(board(shop, lambda _request, strange=strange: strange)).get("/jobs")
        assert answer.status == 500
        assert "send_receipt" not in answer.text

    def fails(request: Request) -> Access:
        raise KeyError(SECRET)

    for colour in ("wsgi", "asgi"):
        answer = Client(board(shop, fails), colour).get("/jobs")
        assert answer.status == 500
        assert SECRET not in answer.text


def test_an_async_rule_is_awaited_and_refused_where_it_cannot_be(shop: Shop) -> None:
    async def rule(request: Request) -> Access | None:
        await asyncio.sleep(0)
        return ALL if request.headers.get("x-user") == "ada" else None

    made = board(shop, rule)
    assert Client(made, "asgi").get("/jobs", x_user="ada").status == 200
    assert Client(made, "asgi").get("/jobs").status == 403
    assert Client(made, "wsgi").get("/jobs", x_user="ada").status == 500


def test_access_is_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="actions"):
        Access("ada", ["replay", "launch"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="actions"):
        Access("ada", "replay")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="actor"):
        Access(None, ["replay"])


# What they may do


def test_a_reader_who_posts_a_hidden_action_changes_nothing(shop: Shop) -> None:
    """Oban Web 2.12.5: actions were hidden from readers, and done for them."""
    client, before = Client(board(shop, READ)), shop.hf.store.run(admin.audit())
    for name in DEEDS:
        fields = {
            "q": "kind:send_receipt",
            "total": "9",
            "queue": "mail",
            "name": "nightly",
            "id": "order-2",
            "key": "k",
        }
        assert client.post(f"/do/{name}", fields).status == 403, name
        assert client.get(f"/ask/{name}?queue=mail").status == 403, name
    assert shop.hf.store.run(admin.audit()) == before


def test_each_action_needs_its_own_permission(empty: Shop) -> None:
    for name, deed in DEEDS.items():
        others = tuple(one for one in ACTIONS if one != deed.permission)
        assert Client(board(empty, Access("ada", others))).post(f"/do/{name}", {"queue": "x"}).status == 403, name


def test_no_action_is_done_by_get_or_head(shop: Shop) -> None:
    """Airflow, GHSA-6m9r-7wrx-xmr6: a link did what a form should do."""
    client, before = Client(board(shop)), shop.hf.store.run(admin.audit())
    said = "q=kind:send_receipt&total=9&queue=mail&name=nightly&id=order-2&key=k"
    for name in DEEDS:
        for method in ("GET", "HEAD"):
            answer = client.ask(method, f"/do/{name}?{said}", b"", {"sec_fetch_site": "same-origin"})
            assert answer.status == 405, name
        # What a query says is not what a form says.
        client.post(f"/do/{name}?{said}")
    assert shop.hf.store.run(admin.audit()) == before
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert client.ask(method, "/jobs", b"", {}).status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "", "origin": "http://evil.example"},
        {"sec_fetch_site": "", "origin": "null"},
        {"sec_fetch_site": "", "origin": "http://testserver.evil.example"},
        {"sec_fetch_site": "cross-site", "origin": "http://testserver"},
        {"sec_fetch_site": "", "origin": ""},
    ],
    ids=["cross site", "same site", "other origin", "null origin", "like origin", "says both", "says nothing"],
)
def test_a_form_of_another_site_is_refused(shop: Shop, headers: dict[str, str]) -> None:
    """PgQueuer, and everybody over plain HTTP: a request without Sec-Fetch-Site was taken for one of ours."""
    for colour in ("wsgi", "asgi"):
        answer = Client(board(shop), colour).post("/do/pause", {"queue": "mail"}, **headers)
        assert answer.status == 403
    assert not [one for one in shop.hf.pauses() if one.name == "mail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "", "origin": "http://testserver"},
        {"sec_fetch_site": "", "origin": "https://ops.example"},
    ],
    ids=["same origin", "typed", "plain http", "trusted origin"],
)
def test_a_form_of_ours_is_taken_also_behind_a_proxy(shop: Shop, headers: dict[str, str]) -> None:
    """Sidekiq#1289, #4913: "Forbidden" behind proxies."""
    answer = Client(board(shop, origins=["https://ops.example"])).post("/do/pause", {"queue": "mail"}, **headers)
    assert answer.status == 200
    assert [one for one in shop.hf.pauses() if one.name == "mail"]


@pytest.mark.parametrize("colour", ["wsgi", "asgi", "a framework that has read it"])
def test_a_form_that_was_cut_short_is_not_carried_out(shop: Shop, colour: str) -> None:
    """A connection breaks within `q=queue:mail kind:remind`, and `q=queue:mail` finds the whole queue."""
    made, before = board(shop), shop.hf.store.run(admin.audit())
    whole = b"q=queue%3Amail+kind%3Aremind"
    cut = whole[: whole.index(b"+")]
    headers = {"host": "testserver", "sec-fetch-site": "same-origin"}
    if colour == "asgi":
        status = asyncio.run(_cut_short(made, cut, headers))
    else:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/do/cancel",
            "CONTENT_LENGTH": str(len(whole)),
            "wsgi.input": io.BytesIO(cut),
        } | {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        status = made.wsgi.answer(environ, None if colour == "wsgi" else cut).status
    assert status == 400
    assert shop.hf.store.run(admin.audit()) == before


async def _cut_short(made: Dashboard, cut: bytes, headers: dict[str, str]) -> int:
    """Send a part of a form, and be gone."""
    messages = iter([{"type": "http.request", "body": cut, "more_body": True}, {"type": "http.disconnect"}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await made.asgi({"type": "http", "method": "POST", "path": "/do/cancel", "headers": raw}, receive, send)
    await made.setting.store.aclose()
    return int(sent[0]["status"])


def test_a_database_user_that_may_only_select_is_enough_to_look_and_can_do_nothing(
    postgres: Postgres, pg_url: str
) -> None:
    shop, name = Shop(pg_url), pg_url.rpartition("/")[2]
    shop.fill()
    shop.write_history(5)
    role = f"viewer_of_{name}"
    postgres.execute(f"create role {role} login")
    postgres.execute(f"grant select on all tables in schema public to {role}", name)
    try:
        with Holdfast(pg_url.replace("postgres@", f"{role}@")) as hf:
            client = Client(hf.dashboard(access=lambda _request: ALL))
            for path in (path for path in WORDS if not path.startswith("/ask")):
                assert client.get(path).status == 200, path
            assert client.post("/do/pause", {"queue": "mail"}).status >= 400
        assert not [one for one in shop.hf.pauses() if one.name == "mail"]
    finally:
        shop.hf.close()
        postgres.execute(f"drop owned by {role}", name)
        postgres.execute(f"drop role {role}")


# What is shown


def test_nothing_that_a_request_says_becomes_markup(shop: Shop) -> None:
    """CVE-2024-32887 (substr), CVE-2023-1892 (period), CVE-2021-30151 (queue), CVE-2017-12614 (404), CVE-2022-43982."""
    client, nasty = Client(board(shop)), quote(NASTY)
    paths = [f"/{nasty}", f"/jobs?q={nasty}", f"/?period={nasty}", f"/jobs?q=queue:{nasty}", f"/jobs?after={nasty}"]
    paths += [f"/job?id={nasty}", f"/run?id={nasty}", f"/jobs?store={nasty}", f"/ask/pause?queue={nasty}"]
    paths += [f"/ask/{nasty}", f"/audit?actor={nasty}&before={nasty}", f"/runs?workflow={nasty}&status={nasty}"]
    paths += [f"/lines?queue={nasty}", f"/ask/pause?queue=mail&back={nasty}", f"/dead?q={nasty}", f"/outbox?q={nasty}"]
    for path in paths:
        answer = client.get(path)
        assert "<script>alert" not in answer.text, path
        assert answer.status in (200, 400, 404), path
    done = client.post("/do/pause", {"queue": NASTY, "reason": NASTY, "back": NASTY})
    assert done.status == 200
    for text in (done.text, client.get("/queues").text, client.get("/audit").text):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_nothing_that_is_stored_becomes_markup(sqlite_url: str) -> None:
    """Airflow, GHSA-pxch-wr7m-rwxj: stored text, run by those who looked at it."""
    shop = Shop(sqlite_url)
    store = shop.hf.store

    @shop.hf.job(kind=NASTY[:60], queue="mail")
    def nasty(text: str) -> None:
        raise ValueError(text)

    for _ in range(2):
        nasty.using(key=NASTY, headers={"h": NASTY}).enqueue(text=NASTY)
    run_due(shop.hf, raise_errors=False)
    client = Client(board(shop, title=NASTY))
    store.run(admin.pause("kind", NASTY, NASTY, NASTY))
    shop.beat(NASTY, NASTY, [NASTY])
    [first, *_] = store.run(admin.list_jobs())
    for path in (
        "/",
        "/jobs",
        f"/job?id={first.id}",
        "/dead",
        "/queues",
        "/workers",
        "/audit",
        f"/ask/cancel?id={first.id}",
    ):
        answer = client.get(path)
        assert answer.status == 200, answer.text
        assert "<script>alert" not in answer.text, path
        assert "&lt;script&gt;alert" in answer.text, path
    shop.hf.close()


def test_nothing_that_runs_events_and_other_programs_have_stored_becomes_markup(empty: Shop) -> None:
    hf = empty.hf

    def note() -> str:
        return NASTY

    @hf.workflow(queue="runs")
    async def nasty(run: Run) -> None:
        run.set("stage", NASTY)
        await run.step(note)
        await run.signal("approved")

    nasty.start(id=NASTY)
    hf.publish("order.failed", {"text": NASTY}, subject=NASTY, key=NASTY)
    run_due(hf, raise_errors=False)
    assert empty.pdo is not None
    empty.pdo.create_schema()
    empty.pdo.publish("shop.mail", {"to": NASTY})
    empty.note(Folded({(NASTY, NASTY): Figures({"done": 1})}, {NASTY: Depth(5, oldest=9.0)}))
    client = Client(board(empty))
    [row] = [name for name in client.get("/jobs?store=pdo:jobs").page.attribute("id") if name.startswith("row-")]
    run = quote(NASTY)
    for path in (
        "/",
        "/runs",
        f"/run?id={run}",
        f"/ask/signal-run?id={run}",
        "/outbox",
        f"/job?id={row.removeprefix('row-')}&store=pdo:jobs",
    ):
        answer = client.get(path)
        assert answer.status == 200, answer.text
        assert "<script>alert" not in answer.text, path
        assert "&lt;script&gt;alert" in answer.text, path


def test_a_return_address_is_always_one_of_ours(shop: Shop) -> None:
    """CVE-2022-43982: a link of ours that leads elsewhere."""
    client = Client(board(shop))
    for back in ("https://evil.example", "//evil.example", "javascript:alert(1)", "/\\evil.example", "jobs?x"):
        text = client.get(f"/ask/pause?queue=mail&back={quote(back)}").page
        links = [one for one in text.attribute("href") if "evil" in one or "javascript" in one]
        assert links == []


def test_no_request_can_make_pages_refresh_faster(empty: Shop) -> None:
    """CVE-2023-26141: a refresh interval of 1 ms took Sidekiq's page and its server down."""
    client = Client(board(empty))
    assert client.get("/?refresh=1&poll=1&period=1ms").page.attribute("data-refresh") == ["2000"]
    for refresh in (0.001, 0, -1):
        with pytest.raises(ConfigError, match="refresh"):
            board(empty, refresh=refresh)


def test_no_text_makes_it_allocate_gigabytes_or_take_long(empty: Shop) -> None:
    """Oban Web 2.12.5: a cron text did. Here texts are bounded before anything is made of them."""
    client, began = Client(board(empty)), time.monotonic()
    long = "a" * 100_000
    for path in (f"/jobs?q={long}", f"/jobs?q={quote('error:' + chr(34) + long)}", f"/audit?before={long}"):
        assert client.get(path).status in (200, 400)
    for said in (
        {"queue": "mail", "concurrency": "9" * 100_000},
        {"queue": "mail", "rate": "9" * 5000 + "/" + "9" * 5000},
    ):
        assert client.post("/do/limits", said).status == 400
    assert client.post("/do/signal-run", {"id": "x", "name": "y", "payload": "[" * 100_000}).status in (400, 404)
    assert client.post("/do/replay", {"q": "kind:x", "total": "9" * 40}).status == 200
    assert client.get("/jobs?" + "&".join(f"a{n}=1" for n in range(20_000))).status == 413
    assert client.ask("POST", "/do/pause", b"x" * 2_000_000, {"sec_fetch_site": "same-origin"}).status == 413
    assert (
        Client(board(empty), "asgi")
        .ask("POST", "/do/pause", b"x" * 2_000_000, {"sec_fetch_site": "same-origin"})
        .status
        == 413
    )
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "cron",
    [
        "0-99999999999 * * * *",
        "*/99999999999 * * * *",
        "0-59/0 * * * *",
        "9" * 50_000 + " * * * *",
        ",".join(["0-59"] * 20_000) + " * 30 2 *",
        "* * * * 1#99999999999",
        "0 0 30 2 *",
        "@every 1ns",
    ],
    ids=["range", "step", "no step", "digits", "list", "weekday", "never", "macro"],
)
def test_no_stored_cron_text_makes_a_page_allocate_gigabytes(empty: Shop, cron: str) -> None:
    """Oban Web 2.12.5: a cron text did. No page takes one from people; what a row has is read, or told as unknown."""
    empty.hf.sync_schedules()
    with empty.hf.store.link() as link:
        link.raw.execute("update holdfast_schedules set cron = ? where name = 'nightly'", (cron,))
    client = Client(board(empty))
    client.get("/schedules")
    tracemalloc.start()
    try:
        for path in ("/schedules", "/", "/ask/trigger?name=nightly"):
            assert client.get(path).status == 200, path
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_every_answer_has_the_headers_that_keep_a_page_to_itself(shop: Shop) -> None:
    client = Client(board(shop, hosts=["testserver"]))
    answers = [client.get(path) for path in ("/", "/jobs", "/nowhere", "/job?id=x", "/static/x/y", "/ask/pause")]
    answers += [
        client.post("/do/pause", sec_fetch_site="cross-site"),
        client.get("/", host="evil"),
        client.ask("PUT", "/", b"", {}),
    ]
    answers.append(Client(board(shop, lambda _request: None)).get("/"))
    for answer in answers:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert {policy[f"{what}-src"] for what in ("script", "style", "connect", "img")} == {"'self'"}
        assert policy["form-action"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_an_error_says_no_more_than_it_should(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board(shop)

    def fails(_work: Any) -> Any:
        raise RuntimeError(f"at line 3: {SECRET}")

    monkeypatch.setattr(made.setting.store, "run_once", fails)
    answer = Client(made).get("/jobs")
    assert answer.status == 500
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
