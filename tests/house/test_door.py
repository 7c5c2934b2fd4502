"""Every statement that takes a job out of the live table is tested at the door, or leaves followed jobs alone."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.flow import Flow, Steps, flow
from holdfast.life import door
from holdfast.store import Store, migrate
from holdfast.store.catalogue import own_queries
from holdfast.store.dialects import DIALECTS
from holdfast.testing.make import new_job
from holdfast.testing.suite_door import BIT, EXITS, note
from holdfast.values.rows import Lease

Leave = Callable[[Lease], Flow[Any]]
Asked = Callable[..., list[str]]

# Leaves rows with followers where they are, whatever parameters it is given.
SPARES_FOLLOWED = re.compile(r"\bfollowers is null\b(?!\s*-- when)")
# What takes finished rows away: back to the queue; for good by hand, which passes the door; by age, which does not.
# Decision 0018 says why.
FROM_FINISHED = {"replay", "discard", "prune", "runs_over"}


def deletes(statement: str, table: str) -> bool:
    """Tell whether a statement deletes rows of a table of ours, which MySQL names by an alias."""
    if re.search(rf"\bdelete from holdfast_{table}\b", statement):
        return True
    [alias] = re.findall(r"\bdelete (\w)$", statement, re.MULTILINE)[:1] or [None]
    return alias is not None and re.search(rf"\bholdfast_{table} {alias}\b", statement) is not None


def deleting(dialect: str, table: str) -> dict[str, list[str]]:
    """Read from the SQL files, by name, the queries that delete from a table, with the statements that do."""
    found = {
        query.name: [one for one in query.statements if deletes(one, table)] for query in own_queries(dialect).values()
    }
    return {name: statements for name, statements in found.items() if statements}


@flow
def recorded(work: Flow[Any], names: list[str]) -> Steps[None]:
    """Run a flow and note which queries it asks for."""
    steps = work.start()
    rows: Any = None
    try:
        while True:
            statement = steps.send(rows)
            names.append(statement.name)
            rows = yield statement
    except StopIteration:
        return


@pytest.fixture
def asked(sqlite_url: str) -> Iterator[Asked]:
    """Claim a job, let it leave, and tell which queries that took."""
    door.attach(BIT, note)
    with closing(Store(sqlite_url)) as store:
        store.run(migrate.apply(store.migrations))

        def run(leave: Leave, followed: bool = True) -> list[str]:
            store.run(jobs.enqueue(new_job()))
            [lease] = store.run(jobs.claim("mail", limit=1))
            if followed:
                store.run(jobs.follow([lease.job_id], BIT))
            names: list[str] = []
            store.run(recorded(leave(lease), names))
            return names

        yield run
    door.detach(BIT)


@flow
def cancelled_by_hand(lease: Lease) -> Steps[None]:
    yield from jobs.park(lease, "children")
    yield from admin.cancel(lease.job_id, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whatever_deletes_a_live_job_is_tested_at_the_door(dialect: str, asked: Asked) -> None:
    tested = set().union(*(asked(leave) for _, leave in EXITS.values()), asked(cancelled_by_hand))
    deleted = deleting(dialect, "jobs")
    assert len(deleted) >= 5
    others = {name: statements for name, statements in deleted.items() if name not in tested}
    assert [name for name, parts in others.items() if not all(map(SPARES_FOLLOWED.search, parts))] == []


# Leases that nobody knows of have to be found first.
@pytest.mark.parametrize("exit", sorted(EXITS.keys() - {"strays"}))
def test_a_plain_job_leaves_by_one_query(asked: Asked, exit: str) -> None:
    assert len(asked(EXITS[exit][1], followed=False)) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whatever_deletes_a_finished_job_is_known(dialect: str) -> None:
    assert deleting(dialect, "finished").keys() == FROM_FINISHED


def test_a_statement_that_goes_round_the_door_would_be_found() -> None:
    assert deletes("with gone as (delete from holdfast_jobs where id = :id returning id) select id from gone", "jobs")
    assert deletes("delete j\n  from ids u\n straight_join holdfast_jobs j on j.id = u.id", "jobs")
    assert not deletes("delete j\n  from ids u\n straight_join holdfast_jobs j on j.id = u.id", "finished")
    assert not SPARES_FOLLOWED.search("delete from holdfast_jobs where id = 1\n   and followers is null  -- when lone")
