"""What ends a handler's transaction on PostgreSQL: the completion and the COMMIT in one message."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, Job, LeaseLost, jobs
from holdfast.errors import DatabaseUnavailable, TransactionAborted, UniqueViolation
from holdfast.store.dialects.postgres import endings
from holdfast.store.dialects.postgres.endings import literal
from holdfast.testing import Look, new_job
from holdfast.values.rows import Lease


@pytest.fixture
def hf(pg_url: str) -> Iterator[Holdfast]:
    """An application with one connection of each colour, so that what one transaction leaves the next one finds."""
    with Holdfast(pg_url, pool_size=1) as app:
        app.migrate()
        with app.store.link() as link:
            link.tell("create table effects (what text unique deferrable initially deferred)")
        yield app


def held(hf: Holdfast) -> Lease:
    hf.store.run(jobs.enqueue(new_job()))
    [lease] = hf.store.run(jobs.claim("mail", limit=1))
    return lease


def run(job: Job, *statements: str) -> None:
    """Run statements in the job's transaction, and hear of no error of theirs."""
    with job.transaction() as tx:
        for statement in statements:
            with suppress(psycopg.errors.UndefinedTable):
                tx.execute(statement, prepare=False)


def effects(hf: Holdfast) -> list[str]:
    with psycopg.connect(hf.url) as own:
        return [row[0] for row in own.execute("select what from effects order by what")]


def live_and_over(hf: Holdfast) -> tuple[int, int]:
    look = Look(hf.store.run, hf.store)
    return len(look.live()), len(look.over())


@given(text=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_a_literal_is_read_as_it_was(postgres_link: Any, text: str) -> None:
    assert postgres_link.execute(f"select {literal(text)}::text").fetchone() == (text,)
    postgres_link.execute("set standard_conforming_strings = off")
    assert postgres_link.execute(f"select {literal(text)}::text").fetchone() == (text,)
    postgres_link.execute("set standard_conforming_strings = on")


@pytest.fixture(scope="module")
def postgres_link(postgres: Any) -> Iterator[Any]:
    with psycopg.connect(postgres.url(), autocommit=True) as link:
        # With `off` the server warns of each backslash in an ordinary string.
        link.execute("set escape_string_warning = off")
        yield link


def test_other_literals() -> None:
    assert (literal(None), literal(7), literal(True)) == ("null", "7", "1")
    assert literal(datetime(2026, 1, 2, tzinfo=UTC)) == "E'2026-01-02T00:00:00+00:00'"


def test_a_result_with_quotes_and_backslashes_is_stored_as_it_is(hf: Holdfast) -> None:
    job = Job(held(hf), hf.store)
    with job.transaction() as tx:
        tx.execute("set local standard_conforming_strings = off")
        job.result = {"it's": 'a \\\' "quoted" $1 %s \u00e9 \\'}
    [over] = Look(hf.store.run, hf.store).over()
    assert json.loads(over.result) == job.result


def test_a_plan_is_made_again_after_a_while(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    on = set()
    for lifetime in (10, 0, 10):
        monkeypatch.setattr(endings, "PLANS_LIVE", lifetime)
        with Job(held(hf), hf.store).transaction() as tx:
            on.add(tx.info.backend_pid)
    assert live_and_over(hf) == (0, 3)
    # Nothing failed on the way, or the connection would have been closed.
    assert len(on) == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_fails_at_the_commit_itself_completes_nothing(hf: Holdfast, colour: str) -> None:
    job = Job(held(hf), hf.store)
    twice = "insert into effects values ('a'), ('a')"

    async def asynchronously() -> None:
        try:
            async with job.transaction() as tx:
                await tx.execute(twice)
        finally:
            await hf.aclose()

    with pytest.raises(UniqueViolation, match="effects_what_key"):
        asyncio.run(asynchronously()) if colour == "async" else run(job, twice)
    assert not job.settled
    assert (effects(hf), live_and_over(hf)) == ([], (1, 0))


def test_an_error_that_the_handler_swallowed_completes_nothing(hf: Holdfast) -> None:
    job = Job(held(hf), hf.store)
    with pytest.raises(TransactionAborted):
        run(job, "insert into effects values ('a')", "select * from nowhere")
    assert (effects(hf), live_and_over(hf)) == ([], (1, 0))


def test_a_lost_lease_is_told_and_the_connection_stays_good(hf: Holdfast) -> None:
    lease = held(hf)
    hf.store.run(jobs.release(lease))
    with pytest.raises(LeaseLost):
        run(Job(lease, hf.store), "insert into effects values ('a')")
    with hf.store.link() as link:
        pid = link.raw.info.backend_pid
    [again] = hf.store.run(jobs.claim("mail", limit=1))
    with Job(again, hf.store).transaction() as tx:
        tx.execute("insert into effects values ('b')")
        assert tx.info.backend_pid == pid
    assert (effects(hf), live_and_over(hf)) == (["b"], (0, 1))


@pytest.mark.parametrize("keep", [True, False])
def test_what_the_driver_drops_after_a_rollback_is_prepared_again(hf: Holdfast, keep: bool) -> None:
    """psycopg deallocates everything once it has prepared something of its own and sees a rollback."""
    for effect in ("a", "b", "c"):
        run(Job(held(hf), hf.store, keep=keep), f"insert into effects values ('{effect}')")  # noqa: S608 - our own words
        with hf.store.link() as link:
            for _ in range(7):
                link.raw.execute("select %s::integer", (1,))
            link.raw.execute("begin").connection.execute("rollback")
            prepared = link.raw.execute("select name from pg_prepared_statements").fetchall()
            assert not [name for (name,) in prepared if name.startswith("holdfast_")]
    assert (effects(hf), live_and_over(hf)) == (["a", "b", "c"], (0, 3 if keep else 0))


def test_a_handler_may_drop_what_is_prepared(hf: Holdfast) -> None:
    for effect in ("a", "b"):
        with Job(held(hf), hf.store).transaction() as tx:
            tx.execute("insert into effects values (%s)", (effect,))
            tx.execute("deallocate all")
    assert (effects(hf), live_and_over(hf)) == (["a", "b"], (0, 2))


def test_a_lost_connection_is_an_outage_on_a_handlers_thread_too(hf: Holdfast) -> None:
    """There no cursor stands between us and libpq."""
    lease = held(hf)

    def attempt() -> None:
        with Job(lease, hf.store).transaction() as tx, psycopg.connect(hf.url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", (tx.info.backend_pid,))

    with ThreadPoolExecutor(1) as thread, pytest.raises(DatabaseUnavailable):
        thread.submit(attempt).result()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run, Job(lease, hf.store), "insert into effects values ('a')").result()
    assert (effects(hf), live_and_over(hf)) == (["a"], (0, 1))
