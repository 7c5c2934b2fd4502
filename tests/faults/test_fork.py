"""A process that forks after it has used its store: parent and child go on, each with connections of its own.

The processes run a script, because a fork of the test process would take its threads and servers with it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, admin

JOBS = 60

START = """
import asyncio, json, multiprocessing, os, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1], pool_size=2)

@hf.job(kind="one")
def one(n: int) -> None: ...

def answered(calls):
    ids, refused = [], []
    for call in calls:
        try:
            ids.append(call().id)
        except Exception as error:
            refused.append(repr(error))
    return {"ids": ids, "refused": refused}
"""

SYNC = """
def enqueue(count):
    return answered([lambda n=n: one.enqueue(n=n) for n in range(count)])

enqueue(3)
read, write = os.pipe()
pid = os.fork()
told = enqueue(JOBS)
if not pid:
    with os.fdopen(write, "w") as pipe:
        json.dump(told, pipe)
    os._exit(0)
os.close(write)
with os.fdopen(read) as pipe:
    child = json.load(pipe)
os.waitpid(pid, 0)
print(json.dumps([told, enqueue(3), child]))
"""

# The parent's event loop, its connections and its selector are open while the child runs one of its own.
ASYNC = """
runner = asyncio.Runner()

def enqueue(count, run):
    return answered([lambda n=n: run(one.aenqueue(n=n)) for n in range(count)])

async def alone(count):
    told = {"ids": [], "refused": []}
    for n in range(count):
        try:
            told["ids"].append((await one.aenqueue(n=n)).id)
        except Exception as error:
            told["refused"].append(repr(error))
    await hf.aclose()
    return told

enqueue(3, runner.run)
read, write = os.pipe()
pid = os.fork()
if not pid:
    with os.fdopen(write, "w") as pipe:
        json.dump(asyncio.run(alone(JOBS)), pipe)
    os._exit(0)
os.close(write)
told = enqueue(JOBS, runner.run)
with os.fdopen(read) as pipe:
    child = json.load(pipe)
os.waitpid(pid, 0)
print(json.dumps([told, enqueue(3, runner.run), child]))
"""

# A pool of processes, as a web server or a test runner forks them.
POOL = """
def enqueue(count):
    return answered([lambda n=n: one.enqueue(n=n) for n in range(count)])

enqueue(3)
with multiprocessing.get_context("fork").Pool(3) as pool:
    told = pool.map(enqueue, [JOBS // 3] * 3)
print(json.dumps([*told, enqueue(3)]))
"""


# Somebody waits for a result in the parent, and leads for all its threads, while the child waits for another.
WAITING = """
import threading, time
from holdfast.testing.inline import run_due
job = one.enqueue(n=1)
given = []
waiting = threading.Thread(target=lambda: given.append(hf.result(job, timeout=60)))
waiting.start()
board = hf.context.waits._threads.board
# Until its looks are rare and the next one is a while off: SQLite's library keeps locks of its own within a statement,
# and a child that is forked then waits for them for ever, whatever it runs.
while (place := board.jobs.get(job.id)) is None or place.pause < 0.5 or place.next_at < time.monotonic() + 0.3:
    time.sleep(0.01)
assert hf.context.waits._threads._leader
read, write = os.pipe()
pid = os.fork()
if not pid:
    with os.fdopen(write, "w") as pipe:
        own = one.using(run_after=3600).enqueue(n=2)
        try:
            hf.result(own, timeout=0.05)
        except TimeoutError as error:
            pipe.write(str(error))
    os._exit(0)
os.close(write)
with os.fdopen(read) as pipe:
    child = pipe.read()
os.waitpid(pid, 0)
run_due(hf)
waiting.join(60)
print(json.dumps([given, child]))
"""


@pytest.fixture(params=["sqlite_url", "pg_url", "mariadb_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def ran(url: str) -> Callable[[str], list[dict[str, Any]]]:
    with Holdfast(url) as hf:
        hf.migrate()

    def run(script: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-W", "ignore", "-c", START + script.replace("JOBS", str(JOBS)), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        told: list[dict[str, Any]] = json.loads(done.stdout)
        return told

    return run


@pytest.mark.parametrize("script", [SYNC, ASYNC, POOL], ids=["sync", "async", "pool"])
def test_a_child_and_its_parent_lose_no_job(ran: Callable[[str], list[dict[str, Any]]], url: str, script: str) -> None:
    told = ran(script)
    assert [one["refused"] for one in told] == [[]] * len(told)
    ids = [job_id for one in told for job_id in one["ids"]]
    assert len(set(ids)) == len(ids)
    with Holdfast(url) as hf:
        there = {str(job.id) for job in hf.store.run(admin.list_jobs(limit=1000))}
    assert len(there) == len(ids) + 3
    assert set(ids) <= there


def test_a_child_waits_for_results_of_its_own(ran: Callable[[str], Any]) -> None:
    given, child = ran(WAITING)
    assert given == [None]
    assert "has not ended within 0.05 seconds: it is pending" in child


def test_a_child_of_a_database_in_memory_keeps_its_copy() -> None:
    script = """
import os, sys
from holdfast import Holdfast, admin
hf = Holdfast("sqlite:///:memory:")
hf.enqueue("one", check=False)
pid = os.fork()
hf.enqueue("two", check=False)
assert hf.store.run(admin.count_jobs()) == 2
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
