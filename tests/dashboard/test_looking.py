"""A list with a horizon: it finds all that fits, in the end, and never reads more than a bounded number of rows."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from holdfast import Holdfast, admin, jobs
from holdfast.values.failure import ErrorRecord
from holdfast.values.ids import new_ids
from holdfast.values.rows import Finish, NewJob


@pytest.fixture(params=["sqlite", "pg", "mariadb"], ids=["sqlite", "postgres", "mariadb"])
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    with Holdfast(request.getfixturevalue(f"{request.param}_url")) as app:
        app.migrate()
        yield app


def fill(hf: Holdfast, kinds: list[str], outcome: str = "done") -> list[str]:
    """Have jobs of these kinds finished, in this order."""
    ids = new_ids(len(kinds))
    hf.store.run(jobs.enqueue_many([NewJob(one, "mail", kind, "{}") for one, kind in zip(ids, kinds, strict=True)]))
    leases = hf.store.run(jobs.claim(["mail"], limit=len(ids), worker="w", lease_ms=60_000))
    error = ErrorRecord(1, "ValueError", "no", "", "w", "2026-05-01T00:00:00", "2026-05-01T00:00:01")
    said = (None, None) if outcome == "done" else (error.to_json(), error.fingerprint)
    hf.store.run(jobs.settle([Finish(one.job_id, one.fence, outcome, None, *said) for one in leases]))  # type: ignore[arg-type]
    return ids


def test_looks_follow_each_other_to_the_end_and_find_each_row_once(hf: Holdfast) -> None:
    ids = fill(hf, ["rare" if n % 10 == 3 else "usual" for n in range(40)])
    live = new_ids(7)
    hf.store.run(jobs.enqueue_many([NewJob(one, "mail", "rare", "{}") for one in live]))
    found, after, looks = list[str](), None, 0
    while looks == 0 or after is not None:
        look = hf.store.run(admin.newest(admin.Filter(kind="rare"), 3, after, window=5))
        found += [job.id for job in look.rows]
        after, looks = look.more, looks + 1
        assert looks < 50
    assert found == sorted([*live, *(one for n, one in enumerate(ids) if n % 10 == 3)], reverse=True)


def test_a_look_ends_at_its_horizon(hf: Holdfast) -> None:
    fill(hf, ["rare", *["usual"] * 30])
    look = hf.store.run(admin.newest(admin.Filter(kind="rare"), 10, window=5))
    assert (look.rows, look.at_horizon) == ([], True)
    assert hf.store.run(admin.newest(admin.Filter(kind="rare"), 10)).more is None


def test_dead_letters_are_found_whatever_their_age(hf: Holdfast) -> None:
    [dead] = fill(hf, ["poison"], "dead")
    fill(hf, ["usual"] * 30)
    look = hf.store.run(admin.newest(admin.Filter(states=("dead",)), 10, window=5))
    assert [job.id for job in look.rows] == [dead]
    assert [job.id for job in hf.store.run(admin.newest(admin.Filter(ids=(dead,)), 10, window=5)).rows] == [dead]


def test_a_list_of_live_jobs_does_not_look_at_finished_ones(hf: Holdfast) -> None:
    [first] = new_ids(1)
    hf.store.run(jobs.enqueue(NewJob(first, "other", "waits", "{}")))
    fill(hf, ["usual"] * 30)
    look = hf.store.run(admin.newest(admin.Filter(states=("pending",)), 10, window=5))
    assert [job.id for job in look.rows] == [first]
    assert not look.at_horizon
    assert hf.store.run(admin.count_jobs(admin.Filter(states=("pending", "leased")))) == 1


def test_pages_of_the_audit_leave_nothing_out_of_one_moment(hf: Holdfast) -> None:
    fill(hf, ["poison"] * 9, "dead")
    hf.store.run(admin.replay(admin.Filter(), 4, "ada"))
    hf.store.run(admin.discard(admin.Filter(), 5, "grace"))
    seen, before, pages = list[admin.AuditLine](), None, 0
    while pages == 0 or before is not None:
        lines, before = hf.store.run(admin.audit_page(3, before))
        seen, pages = seen + lines, pages + 1
        assert pages < 20
    assert len(seen) == len({(line.action, line.job_id) for line in seen}) == 9
    assert [line.at for line in seen] == sorted((line.at for line in seen), reverse=True)
    assert {line.actor for line in hf.store.run(admin.audit_page(3, None, "grace"))[0]} == {"grace"}
    assert hf.store.run(admin.audit(since=seen[0].at + timedelta(seconds=1))) == []
