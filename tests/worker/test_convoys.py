"""A job that kills its process, and those that were claimed with it."""

from collections import Counter
from pathlib import Path

import pytest

from holdfast import admin
from holdfast.values.payload import decode_value
from tests.worker.processes import Crew, until

INNOCENTS = 15


def started(log: Path) -> Counter[int]:
    """Count the starts of each job, the killer being 0."""
    return Counter(map(int, log.read_text().split()))


def run_convoy(crew: Crew, log: Path, kind: str, max_attempts: int) -> tuple[Counter[int], int]:
    """Run a killer and the innocents behind it until nothing is left; return the starts, and how many workers died."""
    hf = crew.stage.hf
    log.touch()
    hf.enqueue_many(
        [hf.bind(kind, {"n": n, "kills": n == 0}, check=False, max_attempts=max_attempts) for n in range(INNOCENTS + 1)]
    )
    workers = [crew.start(env={"CONVOY_LOG": str(log)})]

    def finished() -> bool:
        if workers[-1].popen.poll() is not None:
            workers.append(crew.start(env={"CONVOY_LOG": str(log)}))
        return not crew.stage.live()

    until(finished, "the convoy", seconds=150)
    return started(log), len(workers) - 1


def outcomes(crew: Crew, kind: str) -> dict[int, tuple[str, int]]:
    """Return the end and the counted attempts of each job."""
    ended = crew.stage.run(admin.list_jobs(admin.Filter(kind=kind), limit=1_000))
    return {decode_value(job.payload)["n"]: (job.state, job.attempts) for job in ended}


@pytest.mark.parametrize("kind, max_attempts", [("convoy", 5), ("convoy_thread", 2)])
def test_an_innocent_never_dies_of_a_job_that_kills_its_process(
    crew: Crew, tmp_path: Path, kind: str, max_attempts: int
) -> None:
    starts, deaths = run_convoy(crew, tmp_path / "starts", kind, max_attempts)
    ends = outcomes(crew, kind)
    assert ends.pop(0) == ("dead", max_attempts)
    assert set(ends.values()) == {("done", 1)}
    assert len(ends) == INNOCENTS
    # One death more than attempts: the first may have been anybody's.
    assert (starts[0], deaths) == (max_attempts + 1, max_attempts + 1)


@pytest.mark.parametrize("kind", ["convoy", "convoy_thread"])
def test_a_job_with_one_attempt_is_started_once_and_not_by_waiting_beside_a_killer(
    crew: Crew, tmp_path: Path, kind: str
) -> None:
    starts, deaths = run_convoy(crew, tmp_path / "starts", kind, 1)
    ends = outcomes(crew, kind)
    assert ends.pop(0) == ("dead", 1)
    assert set(ends.values()) == {("done", 1)}
    assert len(ends) == INNOCENTS
    assert (set(starts.values()), deaths) == ({1}, 1)
