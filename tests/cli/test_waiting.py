"""`holdfast jobs wait` and `holdfast enqueue --wait`."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import admin, jobs, results
from holdfast.cli.shared import Exit
from holdfast.store import Store
from holdfast.testing import failure, new_job
from holdfast.values.ids import new_id
from holdfast.values.rows import Finish
from tests.cli.conftest import Run


def ended(store: Store, outcome: str = "done", result: str | None = None) -> str:
    """Add a job that has ended."""
    job = new_job("default", "greet")
    store.run(jobs.enqueue(job))
    [lease] = store.run(jobs.claim("default", limit=1))
    store.run(jobs.settle([Finish(lease.id, lease.fence, outcome, result, failure() if outcome == "dead" else None)]))  # type: ignore[arg-type]
    return job.id


@pytest.mark.parametrize("result", ['{"sent": true}', "[1, 2.5]", '"ada"', "null", None])
def test_the_result_of_a_job_is_printed_as_json(run: Run, app: str, store: Store, result: str | None) -> None:
    done = run("jobs", "wait", ended(store, result=result), "--app", app)
    assert json.loads(done.stdout) == json.loads(result or "null")
    assert done.stdout.count("\n") == 1


def test_how_a_job_ended_is_the_exit_code(run: Run, app: str, url: str, store: Store) -> None:
    dead, pending = ended(store, "dead"), new_job("default", "greet")
    assert (
        "is dead after 1 of 5 attempts: ValueError: it broke" in run("jobs", "wait", dead, "--app", app, code=8).stderr
    )
    store.run(jobs.enqueue(pending))
    late = run("jobs", "wait", pending.id, "--timeout", "0.05", "--app", app, code=10).stderr
    assert late.startswith(
        f"error: Job {pending.id} (greet, queue default) has not ended within 0.05 seconds: it is pend"
    )
    assert "No live worker serves its queue" in late
    assert "has not ended yet" in run("jobs", "wait", pending.id, "--timeout", "0", "--url", url, code=10).stderr
    store.run(admin.cancel(pending.id, None))
    assert "was cancelled before it ran" in run("jobs", "wait", pending.id, "--app", app, code=9).stderr
    assert "There is no job" in run("jobs", "wait", new_id(), "--app", app, code=5).stderr
    assert "must be the id of a job" in run("jobs", "wait", "x", "--app", app, code=2).stderr
    assert {Exit.DEAD, Exit.CANCELLED, Exit.TIMEOUT} == {8, 9, 10}


def test_rows_of_foreign_tables_have_no_results(run: Run, app: str, url: str) -> None:
    told = run("jobs", "wait", "5", "--store", "pdo:jobs", "--url", url, code=6).stderr
    assert "pdo:jobs keeps no results here" in told


@contextmanager
def working(store: Store, *, keep: bool) -> Iterator[None]:
    """End the jobs that somebody waits for, as a worker of another process does, until the block ends."""
    over = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not over.wait(0.01):
                for lease in store.run(jobs.claim(["default", "mail"], limit=1)):
                    if not keep:
                        until(lambda lease=lease: store.run(results.look([lease.job_id]))[lease.job_id].marked)
                    store.run(jobs.settle([Finish(lease.id, lease.fence, "done", '{"sent": 5}', keep=keep)]))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
    assert not failed, failed[0]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("by", ["--app", "--url"])
def test_a_job_is_waited_for_also_where_nothing_is_kept(run: Run, app: str, url: str, store: Store, by: str) -> None:
    """With --url nobody says which queues keep nothing, so any may be one."""
    job = run("enqueue", app, "send_receipt", "order_id=5").stdout.strip()
    with working(store, keep=False):
        done = run("jobs", "wait", job, by, app if by == "--app" else url)
    assert json.loads(done.stdout) == {"sent": 5}


@pytest.mark.parametrize("words", [["--wait"], ["--wait", "60s"], ["--wait=60"]])
def test_an_enqueue_waits_for_the_result(run: Run, app: str, store: Store, words: list[str]) -> None:
    with working(store, keep=True):
        done = run("enqueue", app, "greet", "name=ada", *words)
    assert json.loads(done.stdout) == {"sent": 5}
    [job] = store.run(admin.list_jobs())
    assert done.stderr == f"{job.id}\n"


def test_an_enqueue_that_waits_may_tell_all_as_json(run: Run, app: str, store: Store) -> None:
    with working(store, keep=True):
        done = run("enqueue", app, "greet", "name=ada", "--json", "--wait", "1m")
    [job] = store.run(admin.list_jobs())
    assert json.loads(done.stdout) == {"id": job.id, "created": True, "result": {"sent": 5}}


def test_an_enqueue_whose_result_does_not_come_has_added_its_job(run: Run, app: str, store: Store) -> None:
    late = run("enqueue", app, "greet", "name=ada", "--wait", "0", code=10)
    [job] = store.run(admin.list_jobs())
    assert (late.stdout, late.stderr.split("\n")[0]) == ("", job.id)


def test_a_wait_takes_no_argument_of_the_job_for_its_time(run: Run, app: str, store: Store) -> None:
    told = run("enqueue", app, "greet", "--wait", "name=ada", code=2).stderr
    assert "'name=ada' is not a duration" in told
    assert store.run(admin.count_jobs()) == 0
