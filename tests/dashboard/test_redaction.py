"""Redaction: by the names of keys, at any depth, in texts too, and by the application's own function."""

import time
from typing import Any

import pytest

from holdfast import Job, Run, admin
from holdfast.dashboard.redaction import DEEPEST, HIDDEN, Redaction, Where
from holdfast.testing.inline import run_due
from tests.dashboard.client import Client
from tests.dashboard.conftest import board
from tests.dashboard.ground import SECRET, Shop


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "db_password",
        "API-Key",
        "api_key",
        "apiKey",
        "access_token",
        "Authorization",
        "set-cookie",
    ],
)
def test_values_under_keys_that_sound_like_secrets_are_hidden_at_any_depth(key: str) -> None:
    shown = Redaction().shown({"a": [{"b": {key: {"deep": "secret", "n": 1}}}], "c": 1}, "payload")
    assert shown == {"a": [{"b": {key: HIDDEN}}], "c": 1}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("login failed: password=hunter2, user=ada", f"login failed: password={HIDDEN}, user=ada"),
        ('{"api_key": "abc def", "n": 1}', f'{{"api_key": {HIDDEN}, "n": 1}}'),
        ("Authorization: Bearer abc.def.ghi next", f"Authorization: {HIDDEN} next"),
        ("cannot reach postgresql://ada:hunter2@db/shop", "cannot reach postgresql://ada:***@db/shop"),
        ("Authorization: Token abc next", f"Authorization: {HIDDEN} next"),
        (r"{\"password\": \"hunter2\"}", rf"{{\"password\": {HIDDEN}}}"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_texts_such_as_errors_are_gone_through_too(text: str, expected: str) -> None:
    assert Redaction().shown(text, "errors", 0, "message") == expected


def test_a_function_of_the_application_sees_every_value_and_where_it_stands() -> None:
    seen: list[Where] = []

    def redact(where: Where, value: Any) -> Any:
        seen.append(where)
        return "someone" if where[-1] == "email" else value

    shown = Redaction(redact=redact).shown({"to": [{"email": "ada@example.com"}]}, "payload")
    assert shown == {"to": [{"email": "someone"}]}
    assert seen == [("payload",), ("payload", "to"), ("payload", "to", 0), ("payload", "to", 0, "email")]


def test_a_function_that_fails_hides_what_it_could_not_judge() -> None:
    def redact(where: Where, value: Any) -> Any:
        raise KeyError(where)

    assert Redaction(redact=redact).shown({"a": 1}, "payload") == HIDDEN


def test_what_lies_too_deep_is_hidden_instead_of_shown_unseen() -> None:
    value: Any = {"password": "x"}
    for _ in range(DEEPEST + 5):
        value = [value]
    assert "'x'" not in str(Redaction().shown(value, "payload"))


def test_a_text_at_the_greatest_depth_is_gone_through_like_any_other() -> None:
    value: Any = "password=hunter2"
    for _ in range(DEEPEST):
        value = [value]
    assert "hunter2" not in str(Redaction().shown(value, "payload"))


@pytest.mark.parametrize("word", ["a", "password", "s-", "password ", "password='"])
def test_long_words_take_no_longer_than_others(word: str) -> None:
    text = word * (6_000 // len(word))
    began = time.perf_counter()
    Redaction().shown(text, "payload")
    assert time.perf_counter() - began < 1, "a payload such as base64 would hold up everybody who looks"


def test_what_is_text_and_not_json_is_gone_through() -> None:
    assert Redaction().stored("token=abc", "payload") == f"token={HIDDEN}"


def test_pages_hide_what_the_application_says(shop: Shop) -> None:
    def redact(where: Where, value: Any) -> Any:
        return "NAME" if where == ("payload", "customer", "name") else "KEY" if where == ("key",) else value

    client = Client(board(shop, redact=redact, redact_keys=["order_id"]))
    [job] = shop.hf.store.run(admin.list_jobs(admin.Filter(key="order:24")))
    page = client.get(f"/job?id={job.id}").text
    assert "NAME" in page
    assert "KEY" in page
    assert "Ada" not in page
    assert f"&#34;order_id&#34;: &#34;{HIDDEN}&#34;" in page


def test_what_is_hidden_of_an_event_is_hidden_in_lists_too(shop: Shop) -> None:
    def redact(where: Where, value: Any) -> Any:
        return "SUBJECT" if where == ("payload", "subject") else value

    page = Client(board(shop, redact=redact)).get("/outbox")
    assert "SUBJECT" in page.page.words
    assert "order:1" not in page.page.words


def test_secrets_in_every_place_that_a_job_or_a_run_has_are_hidden(empty: Shop) -> None:
    hf = empty.hf

    @hf.job
    def note(job: Job, data: dict[str, Any]) -> dict[str, Any]:
        job.progress({"cookie": SECRET})
        return {"deep": [{"api_key": SECRET}]}

    def charge() -> dict[str, str]:
        return {"card_number": SECRET}

    @hf.workflow(queue="runs")
    async def pay(run: Run) -> dict[str, str]:
        run.set("session_id", SECRET)
        return await run.step(charge)

    made = note.using(headers={"authorization": f"Bearer {SECRET}"}).enqueue(data={"list": [{"password": SECRET}]})
    pay.start(id="order-1")
    run_due(hf)
    client = Client(board(empty))
    for path, places in (
        (f"/job?id={made.id}", ("payload", "result", "headers", "progress")),
        ("/run?id=order-1", ("charge", "session_id")),
    ):
        page = client.get(path)
        for place in places:
            assert place in page.page.words, f"{path} does not show {place}"
        assert page.text.count(HIDDEN) >= len(places)
        assert SECRET not in page.text
