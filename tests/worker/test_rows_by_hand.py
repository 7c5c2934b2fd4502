"""Rows that somebody wrote by hand, or a program in another language: one bad row costs itself and is named."""

import pytest

from holdfast import Retry, admin, events
from holdfast.values.ids import new_id
from holdfast.worker import Worker, holdings, suspects
from holdfast.worker.rounds import stuck as stuck_round
from tests.worker.stage import Stage

LONG_AGO = {"sqlite": "1", "postgres": "'2001-01-01'", "mysql": "'2001-01-01'"}
NOW = {"sqlite": "unixepoch() * 1000000", "postgres": "statement_timestamp()", "mysql": "utc_timestamp(6)"}
DEEP = "[" * 5_000 + "]" * 5_000

# What is written instead of what belongs there, as SQL; on SQLite a column takes whatever it is given.
EVERYWHERE: dict[str, dict[str, str]] = {
    "a lease of no time": {"lease_ms": "0"},
    "a lease of a millisecond": {"lease_ms": "1"},
    "a lease that ends before it begins": {"lease_ms": "-5000"},
    "the longest lease": {"lease_ms": "2147483647"},
    "no attempts at all": {"max_attempts": "-1"},
    "all attempts there are": {"attempts": "2147483647"},
    "less than no attempts": {"attempts": "-2147483648"},
    "the last fence": {"fence": "9223372036854775807"},
    "the last fence but one": {"fence": "9223372036854775806"},
    "a fence below nothing": {"fence": "-5"},
    "all lapses there are": {"lapses": "2147483647"},
    "less than no lapses": {"lapses": "-1"},
    "all replays there are": {"replays": "2147483647"},
    "a deep payload": {"payload": f"'{DEEP}'"},
    "a huge number": {"payload": f"""'{{"n": {"9" * 5_000}}}'"""},
    "headers that are a list": {"headers": "'[1]'"},
    "errors that are an object": {"errors": """'{"a": 1}'"""},
    "errors that are a number": {"errors": "'7'"},
    "errors that are a list of numbers": {"errors": "'[7]'"},
    "leased by nobody knows whom": {"state": "'leased'", "lease_expires_at": "LONG_AGO"},
    "leased and without attempts": {"state": "'leased'", "lease_expires_at": "LONG_AGO", "attempts": "-2147483648"},
    "leased with all attempts": {"state": "'leased'", "lease_expires_at": "LONG_AGO", "attempts": "2147483647"},
    "leased with the last fence": {"state": "'leased'", "lease_expires_at": "LONG_AGO", "fence": "9223372036854775807"},
    "leased with all lapses": {"state": "'leased'", "lease_expires_at": "LONG_AGO", "lapses": "2147483647"},
    "leased for ever": {"state": "'leased'"},
    "waiting for nothing": {"state": "'waiting'"},
    "leased with errors that are none": {"state": "'leased'", "lease_expires_at": "LONG_AGO", "errors": "'7'"},
}
BY_DATABASE: dict[str, dict[str, dict[str, str]]] = {
    "sqlite": {
        "bad UTF-8": {"payload": "cast(x'7b226e223aff7d' as text)"},
        "bad UTF-8 in the key": {"key": "cast(x'ff' as text)"},
        "a lease in words": {"lease_ms": "'abc'"},
        "attempts in words": {"attempts": "'x'"},
        "most attempts in words": {"max_attempts": "'many'"},
        "a priority in words": {"priority": "'high'"},
        "a fence in words": {"fence": "'x'"},
        "lapses in words": {"lapses": "'x'"},
        "a time in words": {"available_at": "'2020-01-01'"},
        "a fraction of a time": {"available_at": "1.5"},
        "a birth in words": {"created_at": "'2020-01-01'"},
        "an endless birth": {"created_at": "9e999"},
        "headers that are not JSON": {"headers": "'not json'"},
        "a blob for a payload": {"payload": "x'ff00'"},
        "a blob for an id": {"id": "x'0102'"},
        "an odd id": {"id": """'a"b'"""},
        "errors that are not JSON": {"errors": "'garbage'"},
        "leased with garbage for errors": {"state": "'leased'", "lease_expires_at": "1", "errors": "'garbage'"},
        "leased since words": {"state": "'leased'", "lease_expires_at": "1", "leased_at": "'noon'"},
        "leased by a blob": {"state": "'leased'", "lease_expires_at": "1", "leased_by": "x'ff'"},
        "leased with attempts in words": {"state": "'leased'", "lease_expires_at": "1", "attempts": "'x'"},
        "leased with a fence in words": {"state": "'leased'", "lease_expires_at": "1", "fence": "'x'"},
        "leased with bad UTF-8": {"state": "'leased'", "lease_expires_at": "1", "leased_by": "cast(x'ff' as text)"},
    },
    "postgres": {
        "due since ever": {"available_at": "'-infinity'"},
        "born never": {"created_at": "'infinity'"},
        "leased since ever": {"state": "'leased'", "lease_expires_at": "'-infinity'", "leased_at": "'-infinity'"},
    },
    "mysql": {
        "headers that are not JSON": {"headers": "'not json'"},
        "a payload that is not JSON": {"payload": "'not json'"},
        "errors that are not JSON": {"errors": "'garbage'"},
        "errors that are nothing": {"errors": "''"},
        "an odd id": {"id": """'a"b'"""},
        "a time before all times": {"available_at": "'1000-01-01'"},
        "leased with garbage for errors": {
            "state": "'leased'",
            "lease_expires_at": "'2001-01-01'",
            "errors": "'garbage'",
        },
    },
}


# Nothing can take these: a time in words never comes, a lease without an end never ends, and an id must be a text.
STUCK = {"a time in words", "a blob for an id", "leased for ever", "waiting for nothing"}
FAILS = """'{"n": -1}'"""


def cases(database: str) -> dict[str, dict[str, str]]:
    found = EVERYWHERE | BY_DATABASE[database]
    # What a handler's own failure is added to, too.
    failing = {f"{name}, and it fails": row | {"payload": FAILS} for name, row in found.items() if "errors" in row}
    return found | failing


def put(stage: Stage, database: str, columns: dict[str, str]) -> str:
    """Insert a row as given, over what a good one has, and return its id as SQL."""
    row = {
        "id": f"'{new_id()}'",
        "queue": "'default'",
        "kind": "'act'",
        "payload": """'{"n": 1}'""",
        "max_attempts": "3",
    }
    row |= {"available_at": NOW[database], "created_at": NOW[database]} | columns
    values = ", ".join(row.values()).replace("LONG_AGO", LONG_AGO[database])
    stage.sql(f"insert into holdfast_jobs ({', '.join(row)}) values ({values})")  # noqa: S608 - by hand, on purpose
    return row["id"]


def ended(stage: Stage, job_id: str) -> str:
    """Return how a job ended, or its state."""
    found = stage.sql(f"select outcome from holdfast_finished where id = {job_id}")  # noqa: S608 - the id as SQL
    found = found or stage.sql(f"select state from holdfast_jobs where id = {job_id}")  # noqa: S608 - the id as SQL
    return str(found[0][0])


def test_a_bad_row_costs_itself_and_stops_neither_claims_nor_reaps_nor_lists(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_round.Stuck, "every_seconds", 0.2)
    monkeypatch.setattr(suspects, "CALM_SECONDS", 0.0)
    database = "sqlite" if stage.is_sqlite else "postgres" if stage.url.startswith("postgres") else "mysql"

    @stage.hf.job(retry=Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0), lease=2)
    async def act(n: int) -> int:
        if n < 0:
            raise ValueError("it fails")
        return n

    # A good one that somebody left behind, among all the bad ones.
    left = put(stage, database, {"state": "'leased'", "lease_expires_at": "LONG_AGO", "leased_at": "LONG_AGO"})
    bad = {name: put(stage, database, columns) for name, columns in cases(database).items()}
    stuck = {name: job_id for name, job_id in bad.items() if name in STUCK}

    async def body(worker: Worker) -> None:
        assert (await stage.hf.store.arun(admin.list_jobs(limit=1_000)))[0].to_dict()
        good = await act.aenqueue(n=2)
        await stage.until(lambda: worker.stopping or stage.live() == len(stuck))
        await stage.until_said(events.JobStuck, len(stuck))
        assert not worker.stopping, worker.failure
        assert (stage.state(good), ended(stage, left)) == ("done", "done")

    stage.work(body, poll=0.05)
    ends = {name: ended(stage, job_id) for name, job_id in bad.items()}
    assert {name for name, end in ends.items() if end not in ("done", "dead")} == stuck.keys()
    assert {name for name, end in ends.items() if end == "dead"} >= {name for name in bad if name.endswith("it fails")}
    for job in stage.run(admin.list_jobs(limit=1_000)):
        assert job.to_dict()
        assert job.state != "dead" or job.last_error
    assert stage.run(admin.list_jobs(admin.Filter(error="it fails"), limit=1_000))
    assert stage.run(admin.dead_groups())
    assert stage.run(admin.replay(admin.Filter(states=("dead",)), 1_000, "test")).ids
    assert not stage.heard(events.DatabaseLost)


def test_a_lease_that_is_too_short_does_not_make_a_worker_spin(stage: Stage) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        for seconds in (0.0, -5.0, 0.001):
            worker.holdings.note_lease(seconds)
        assert worker.holdings.shortest_lease == holdings.SHORTEST_LEASE_SECONDS

    stage.work(body)
