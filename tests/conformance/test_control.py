"""Ten thousand jobs at once, and what one transaction of that writes and locks."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.admin import Cancelled, Filter
from holdfast.flow import Flow, run_series
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.values.ids import new_ids


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"], indirect=True)
def test_ten_thousand_jobs_are_cancelled_in_bounded_transactions(store: Store) -> None:
    new = new_ids(10_000)
    store.run(jobs.enqueue_many([new_job(id=each, key=f"k{n % 100}") for n, each in enumerate(new)]))
    sizes: list[int] = []

    def run(work: Flow[Any]) -> Any:
        """Run one flow, and count the rows that its statements are given and return, where it writes."""
        steps = work.start()
        most = 0
        with store.transaction() as link:
            rows: Any = None
            try:
                while True:
                    statement = steps.send(rows)
                    rows = link.session.run(statement)
                    given = [len(value) for value in statement.params.values() if isinstance(value, list)]
                    most = max(most, len(rows), *given, *map(len, (statement.batch or {}).values()))
            except StopIteration as stop:
                if isinstance(stop.value, Cancelled):
                    sizes.append(most)
                return stop.value

    answer = run_series(admin.cancel_all(Filter(queue="mail"), None, "ann"), run)
    assert sorted(answer.cancelled) == sorted(new)
    assert sizes == [500] * 20
    look = Look(store.run, store)
    assert (look.live(), len(look.over())) == ([], 10_000)
    assert [int(row[0]) for row in look.rows("select count(*) from holdfast_audit")] == [10_000]
