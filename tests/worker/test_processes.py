"""Workers as processes: signals in every phase, exit codes, the parent over several."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker import registry
from tests import servers
from tests.worker.processes import Crew, Process, alive, crew_on, until
from tests.worker.stage import Stage


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Two of the databases by default: signals and processes care little about which."""
    found: Stage = request.getfixturevalue("pg_stage" if request.param == "postgres" else f"{request.param}_stage")
    return found


on_all = pytest.mark.parametrize("stage", ["sqlite", "postgres", "mariadb", "mysql"], indirect=True)


def enqueue(stage: Stage, kind: str, **payload: Any) -> Any:
    return stage.hf.enqueue(kind, payload, check=False)


def enqueue_ledger(stage: Stage, count: int) -> None:
    stage.sql("create table effects (n integer)")
    stage.hf.enqueue_many([stage.hf.bind("effect", {"n": n}, check=False, queue="ledger") for n in range(count)])


def workers(stage: Stage) -> list[str]:
    return [worker.status for worker in stage.hf.store.run(registry.workers())]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_idle_ends_it_cleanly(crew: Crew, number: signal.Signals) -> None:
    worker = crew.start().started()
    assert worker.end(number) == 0
    assert [line["why"] for line in worker.said("worker stopping")] == [number.name]
    assert len(worker.said("worker stopped")) == 1
    assert workers(crew.stage) == ["stopped"]


def test_a_signal_while_it_starts_ends_it(crew: Crew) -> None:
    worker = crew.start()
    until(lambda: worker.said("worker started") or worker.popen.poll() is not None or alive(worker.pid))
    assert worker.end() in (0, -signal.SIGTERM)


@on_all
def test_a_signal_in_the_middle_of_claiming_leaves_no_lease(crew: Crew) -> None:
    stage = crew.stage
    stage.hf.enqueue_many([stage.hf.bind("quick", {"n": n}, check=False) for n in range(5_000)])
    worker = crew.start("--log-level", "debug")
    worker.until_said("job done", 50)
    assert worker.end() == 0
    assert stage.sql("select count(*) from holdfast_jobs where state = 'leased'") == [(0,)]
    assert stage.sql("select count(*) from holdfast_jobs where attempts > 0") == [(0,)]
    [[live], [over]] = stage.sql("select count(*) from holdfast_jobs union all select count(*) from holdfast_finished")
    assert live + over == 5_000


@pytest.mark.parametrize("kind", ["slow", "slow_thread"])
def test_a_signal_lets_running_handlers_finish(crew: Crew, kind: str) -> None:
    job = enqueue(crew.stage, kind, seconds=0.6)
    worker = crew.start().started()
    until(lambda: crew.stage.show(job).progress)
    assert worker.end() == 0
    shown = crew.stage.show(job)
    assert (shown.state, shown.result, shown.attempts) == ("done", worker.pid, 1)


@pytest.mark.parametrize("kind", ["slow", "slow_thread"])
def test_after_the_drain_time_the_process_ends_and_the_job_is_free(crew: Crew, kind: str) -> None:
    job = enqueue(crew.stage, kind, seconds=600)
    worker = crew.start("--drain", "0.2").started()
    until(lambda: crew.stage.show(job).progress)
    assert worker.end() == 0
    shown = crew.stage.show(job)
    assert (shown.state, shown.attempts, shown.leased_by) == ("pending", 0, None)


def test_a_second_signal_ends_it_at_once(crew: Crew) -> None:
    job = enqueue(crew.stage, "slow", seconds=600)
    worker = crew.start("--drain", "600").started()
    until(lambda: crew.stage.show(job).progress)
    worker.send(signal.SIGTERM)
    worker.until_said("worker stopping")
    assert worker.end(signal.SIGTERM) == 0
    assert (crew.stage.state(job), crew.stage.show(job).attempts) == ("pending", 0)


def test_a_handler_that_ignores_its_cancellation_cannot_keep_the_process(sqlite_stage: Stage, tmp_path: Path) -> None:
    job = enqueue(sqlite_stage, "deaf")
    with crew_on(sqlite_stage, tmp_path) as crew:
        worker = crew.start("--drain", "0").started()
        until(lambda: sqlite_stage.show(job).progress)
        assert worker.end() == 1
    assert sqlite_stage.state(job) == "leased"


def test_it_runs_without_uvloop_too(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('not here')\n")
    job = enqueue(crew.stage, "quick", n=3)
    worker = crew.start(env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}).started()
    until(lambda: crew.stage.state(job) == "done")
    assert worker.end() == 0


def test_no_tables_is_exit_code_3(tmp_path: Path) -> None:
    worker = Process(f"sqlite:///{tmp_path}/empty.db", tmp_path / "log")
    assert (worker.wait(), "migrate" in worker.text()) == (3, True)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_tables_of_another_version_are_exit_code_3(crew: Crew, processes: str) -> None:
    crew.stage.sql("update holdfast_meta set value = '999' where key = 'schema_version'")
    assert crew.start("--processes", processes).wait() == 3


def test_no_database_is_exit_code_4(tmp_path: Path) -> None:
    worker = Process(f"postgresql://u:secret@127.0.0.1:{servers.free_port()}/none", tmp_path / "log")
    assert worker.wait() == 4
    assert "secret" not in worker.text()


def children(parent: Process) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent.pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@on_all
def test_a_parent_replaces_a_killed_child_and_stops_on_a_signal(crew: Crew) -> None:
    enqueue_ledger(crew.stage, 300)
    parent = crew.start("--processes", "2")
    parent.until_said("worker started", 2)
    victim = children(parent)[0]
    os.kill(victim, signal.SIGKILL)
    parent.until_said("worker started", 3)
    until(lambda: not crew.stage.live())
    assert parent.end() == 0
    assert crew.stage.sql("select count(*), count(distinct n) from effects") == [(300, 300)]
    assert len(parent.said("worker stopped")) == 2
    assert not [pid for pid in children(parent) if alive(pid)]


def test_ctrl_c_at_the_terminal_counts_once_for_each_child(crew: Crew) -> None:
    """The terminal signals the whole group: children that got it twice would not drain."""
    jobs = [enqueue(crew.stage, "slow", seconds=0.8) for _ in range(2)]
    parent = crew.start("--processes", "2")
    parent.until_said("worker started", 2)
    until(lambda: all(crew.stage.show(job).progress for job in jobs))
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait() == 0
    assert {crew.stage.state(job) for job in jobs} == {"done"}


def test_children_stop_when_their_parent_is_gone(crew: Crew) -> None:
    parent = crew.start("--processes", "2")
    parent.until_said("worker started", 2)
    orphans = children(parent)
    parent.kill()
    until(lambda: not any(alive(pid) for pid in orphans))
    assert len(parent.said("worker stopped")) == 2


def test_a_database_in_memory_is_for_one_process() -> None:
    from holdfast import ConfigError
    from holdfast.worker.process import main

    with Holdfast("sqlite:///:memory:") as hf, pytest.raises(ConfigError, match="one process"):
        main(hf, processes=2)
