"""Every page, on every database and as WSGI and ASGI: it is there, says what it should, and hides what it must."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest

from holdfast import Holdfast, admin
from holdfast.dashboard.pages import runs
from holdfast.dashboard.visit import Visit
from holdfast.runs import RunView
from holdfast.worker import registry
from tests.dashboard.client import Client, Page
from tests.dashboard.conftest import ALL, READ, board
from tests.dashboard.ground import SECRET, TRACE, Shop

# A page, and words that must be on it.
WORDS = {
    "/": ("oldest due job", "Needs somebody", "send_receipt", "web1-4821-7f3a", "paused", "as a table"),
    "/jobs": ("send_receipt", "dead", "pending", "no such order"),
    "/jobs?q=state:dead+queue:images": ("resize", "is not a picture"),
    "/dead": ("8 × send_receipt", "5 × resize", "Replay…"),
    "/queues": ("images", "the disk is full", "concurrency 5", "Limits"),
    "/lines?queue=orders": ("Lines of orders",),
    "/schedules": ("nightly", "0 2 * * *", "Trigger", "sweep"),
    "/workers": ("web1-4821-7f3a", "alive", "Drain"),
    "/outbox": ("orders", "order.failed", "Function(", "no route takes"),
    "/runs": ("order-1", "waiting", "signal:approved"),
    "/run?id=order-1": ("charge", "deliver", "Timeline", "Tree", "stage"),
    "/run?id=order-2": ("waits for", "Signal"),
    "/stores": ("Foreign stores", "Rows"),
    "/audit": ("queue pause", "grace@ops1"),
    "/ask/replay?q=kind:send_receipt": ("Replay 8 dead letters?", "The audit will name ada"),
    "/ask/cancel?q=queue:reports+state:pending": ("Cancel 8 jobs?",),
    "/ask/pause?queue=mail": ("Pause queue mail?", "Why?"),
    "/ask/limits?queue=orders": ("Limits of orders", "At once"),
    "/ask/trigger?name=nightly": ("Trigger nightly?",),
    "/ask/drain?id=web1-4821-7f3a": ("Drain 1 worker?",),
    "/ask/signal-run?id=order-2": ("Signal run order-2",),
}


PDO_WORDS = {"/jobs?store=pdo:jobs": ("shop.mail",), "/dead?store=pdo:jobs": ("no dead letters",)}
AIRLOCK_WORDS = {"/jobs?store=airlock:airlock_messages": ("airlock:airlock_messages", "No job fits")}


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(request.getfixturevalue(f"{request.param}_url"))
    made.fill()
    made.write_history(5)
    yield made
    made.hf.close()


def test_every_page_says_what_it_should_in_both_colours(everywhere: Shop) -> None:
    for colour, base in (("wsgi", ""), ("asgi", "/ops/holdfast")):
        client = Client(board(everywhere), colour, base)
        for path, words in (WORDS | (PDO_WORDS if everywhere.pdo else AIRLOCK_WORDS)).items():
            answer = client.get(path)
            assert answer.status == 200, f"{colour} {path}: {answer.text[-600:]}"
            for word in words:
                assert word in answer.page.words or word in answer.text, f"{colour} {path} does not say {word!r}"
            assert SECRET not in answer.text, f"{colour} {path} shows a secret"
            check_html(answer.page, base)


def check_html(page: Page, base: str) -> None:
    """No style or script in the page, one main heading, links that stay below where it is mounted."""
    assert len([tag for tag, _ in page.elements if tag == "h1"]) == 1
    assert not page.attribute("style")
    assert not [name for _, said in page.elements for name in said if name.startswith("on")]
    for where in page.attribute("href") + page.attribute("src") + page.attribute("action"):
        assert where.startswith((f"{base}/", "#")), where
    ids = page.attribute("id")
    assert len(ids) == len(set(ids))


def test_one_jobs_story_tells_attempts_errors_holder_audit_family_and_trace(shop: Shop) -> None:
    client = Client(board(shop))
    [dead] = shop.hf.store.run(admin.list_jobs(admin.Filter(states=("dead",), key="order:24")))
    shop.hf.store.run(admin.retry(dead.id, "grace"))
    told = client.get(f"/job?id={dead.id}")
    for word in ("was enqueued", "attempt 1 failed", "ValueError: no such order 24", "replay by hand", "grace", TRACE):
        assert word in told.text, word
    held = shop.claim()
    told = client.get(f"/job?id={held}")
    assert "web1-77-ab" in told.text
    assert "lease ends" in told.page.words
    [ship] = shop.hf.store.run(admin.list_jobs(admin.Filter(kind="ship")))
    family = client.get(f"/job?id={ship.id}").page.words
    assert "continues it" in family
    assert "invoice" in family
    assert client.get("/job?id=01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f").status == 404
    assert client.get("/job?id=nonsense").status == 404


def test_pages_of_jobs_follow_each_other_without_gaps(shop: Shop) -> None:
    client, seen = Client(board(shop)), list[str]()
    path = "/jobs"
    while path:
        page = client.get(path).page
        seen += [name.removeprefix("row-") for name in page.attribute("id") if name.startswith("row-")]
        path = next((str(said["href"]) for tag, said in page.elements if said.get("rel") == "next"), "")
    every = [job.id for job in shop.hf.store.run(admin.list_jobs(limit=1000))]
    assert seen == every
    assert len(every) > 50


@pytest.mark.parametrize("path, prefix", [("/runs", "run-"), ("/outbox", "delivery-")])
def test_pages_of_a_list_leave_nothing_out_and_show_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, path: str, prefix: str
) -> None:
    def rows(page: Page) -> list[str]:
        return [name for name in page.attribute("id") if name.startswith(prefix)]

    client, seen, pages = Client(board(shop)), list[str](), 0
    whole = rows(client.get(path).page)
    monkeypatch.setattr(f"holdfast.dashboard.pages{path.replace('/', '.')}.ROWS", 2)
    while path:
        page = client.get(path).page
        seen, pages = seen + rows(page), pages + 1
        path = next((str(said["href"]) for tag, said in page.elements if said.get("rel") == "next"), "")
    assert seen[: len(whole)] == whole
    assert len(set(seen)) == len(seen)
    assert pages > 1


def test_a_search_that_cannot_be_read_says_what_to_write(empty: Shop) -> None:
    client = Client(board(empty))
    for search, words in (
        ("quue:mail", "did you mean queue:?"),
        ("since:yesterdayish", "since: takes 2h"),
        ("state:daed", "must be among pending, waiting"),
        ("queue:a queue:b", "says queue: twice"),
    ):
        answer = client.get(f"/jobs?q={quote(search)}")
        assert answer.status == 400
        assert words in answer.page.words
    assert client.get(f"/dead?q={quote('quue:x')}").status == 400
    assert client.get(f"/outbox?q={quote('quue:x')}").status == 400
    assert client.get("/jobs?store=pdo:other").status == 400


def test_who_may_only_look_sees_no_action(shop: Shop) -> None:
    client = Client(board(shop, READ))
    for path in (path for path in WORDS if not path.startswith("/ask")):
        answer = client.get(path)
        assert answer.status == 200
        assert not [form.action for form in answer.page.forms if "/ask/" in form.action or "/do/" in form.action], path
        assert 'type="checkbox"' not in answer.text
        assert "/ask/" not in answer.text
    assert "read only" in client.get("/").page.words


def test_every_page_is_there_in_an_empty_database(empty: Shop) -> None:
    client = Client(board(empty))
    for path in ("/", "/jobs", "/dead", "/queues", "/lines", "/schedules", "/workers", "/outbox", "/runs", "/audit"):
        assert client.get(path).status == 200, path
    assert client.get("/run?id=none").status == 404
    assert client.get("/stores").status == 200


def test_a_database_that_is_away_is_told_on_the_page() -> None:
    with Holdfast("postgresql://ada:hunter2@127.0.0.1:1/none", connect_timeout=1) as hf:
        for colour in ("wsgi", "asgi"):
            answer = Client(hf.dashboard(access=lambda _request: ALL), colour).get("/jobs")
            assert answer.status == 503
            assert "cannot be reached" in answer.page.words or "connect" in answer.page.words.lower()
            assert "hunter2" not in answer.text


def test_files_are_served_by_a_name_that_says_what_is_in_them(empty: Shop) -> None:
    client = Client(board(empty))
    page = client.get("/").page
    addresses = [one for one in page.attribute("href") + page.attribute("src") if "/static/" in one]
    assert len(set(addresses)) == 6
    for address in addresses:
        answer = client.get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/000000000000/app.js").status == 404
    assert client.get("/static/../board.py").status == 404


def test_vendored_files_are_those_that_are_written_down() -> None:
    folder = files("holdfast.dashboard").joinpath("static")
    written = dict(
        re.findall(r"^\| `([\w.]+)` \|.*`([0-9a-f]{64})` \|$", folder.joinpath("VENDORED.md").read_text(), re.M)
    )
    assert set(written) == {"htmx.min.js", "uplot.min.js", "uplot.min.css"}
    for name, expected in written.items():
        assert sha256(folder.joinpath(name).read_bytes()).hexdigest() == expected
    for licence in ("LICENSE.htmx.txt", "LICENSE.uplot.txt"):
        assert "WARRANT" in folder.joinpath(licence).read_text()


def test_htmx_is_used_without_anything_that_needs_eval(empty: Shop) -> None:
    """hx-on, js: values and trigger filters call Function, which script-src 'self' forbids."""
    for path in files("holdfast.dashboard").joinpath("templates").iterdir():
        text = path.read_text()
        assert not re.search(r"hx-on|hx-vals=.js:|hx-trigger=\"[^\"]*\[", text), path.name


def test_the_overview_is_read_once_for_all_who_look(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board(shop)
    client, asked = Client(made), list[str]()
    run = made.setting.store.run_once
    monkeypatch.setattr(made.setting.store, "run_once", lambda work: (asked.append(work.name), run(work))[1])
    client.get("/")
    first = len(asked)
    client.get("/")
    assert first > 5
    assert len(asked) == first
    assert ALL.may("replay")


def test_an_address_that_was_changed_by_hand_is_told_and_is_no_failure(shop: Shop) -> None:
    client = Client(board(shop))
    for path in ("/runs?after=x", "/jobs?after=x", "/outbox?after=x"):
        answer = client.get(path)
        assert answer.status == 400, path
        assert "must be a UUID" in answer.text


def test_a_tree_of_very_many_runs_is_shown_as_far_as_few_questions_go() -> None:
    def run(name: str) -> RunView:
        return cast("RunView", SimpleNamespace(job_id=name))

    visit = cast("Visit", SimpleNamespace(look=lambda question: (yield question)))
    talk, asked = runs.tree_of(visit, run("0")), 0
    try:
        next(talk)
        while True:
            asked += 1
            talk.send([run(f"{asked}-{n}") for n in range(20)])
    except StopIteration as end:
        root = end.value
    assert asked == runs.MOST_ASKED
    assert len(root.below) == 20
    assert all(len(child.below) == 20 for child in root.below), "the nearest come first"


def test_somebody_who_is_woken_reads_the_cause_first_and_which_queue_is_behind(empty: Shop) -> None:
    store = empty.hf.store
    store.now = datetime.now(UTC) - timedelta(minutes=5)
    empty.send_receipt.enqueue(order_id=1)
    store.now = None
    page = Client(board(empty)).get("/").page
    assert "in mail" in page.of("strong")
    checks = [text for text in page.of("span") if text in ("workers", "lag")]
    assert checks == ["workers", "lag"]


def test_the_overview_finds_work_of_a_kind_that_no_live_worker_handles(empty: Shop) -> None:
    empty.hf.store.run(registry.beat("web1-1", '{"queues": ["mail", "runs"], "kinds": ["remind", "fulfil@1"]}'))
    empty.remind.enqueue(order_id=1)
    empty.fulfil.start(order_id=1, id="order-1")
    told = Client(board(empty)).get("/").page.words
    assert "no live worker" not in told
    empty.send_receipt.enqueue(order_id=1)
    told = Client(board(empty)).get("/").page.words
    assert "queue mail: 1 due of kind send_receipt" in told
    assert "no live worker handles that kind" in told
    empty.hf.store.run(registry.beat("web1-1", '{"queues": ["mail", "runs"], "kinds": ["send_receipt"]}'))
    told = Client(board(empty)).get("/").page.words
    assert "1 run of fulfil@1, 1 of them due, and no live worker serves that version" in told
