"""One soak: enqueue and hurt for a while, then heal, drain, and put together what came of it."""

import shutil
import tempfile
import time
from pathlib import Path

from holdfast.demo.crew import Crew
from holdfast.testing.history import History
from tests.faults.shared import until
from tests.histories.log import read
from tests.soak.app import ENQUEUER, FOLDER, KEEP, RATE, VETERAN
from tests.soak.ground import SHARDS, Ground
from tests.soak.samples import Sampler
from tests.soak.trouble import MORTALS, Deeds, Trouble
from tests.soak.verdict import Outcome

START, DRAIN = 60.0, 60.0
# How often it is looked, at most and at least.
OFTEN, SELDOM = 1.0, 5.0
LEAST_KEPT, LONGEST_KEPT = 20.0, 60.0


def soak(seconds: float, rate: float) -> Outcome:
    """Run all of it and return what came of it; every process that was started is ended, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    for name in ("history", "answers"):
        (folder / name).mkdir()
    try:
        with Ground() as ground:
            keep = min(LONGEST_KEPT, max(LEAST_KEPT, seconds / 15))
            said = {"HOLDFAST_SHARDS": " ".join(ground.urls), FOLDER: str(folder), KEEP: str(keep), RATE: str(rate)}
            crew = Crew("tests.soak.app", said, folder)
            try:
                return _soak(ground, crew, folder, seconds, rate)
            except Exception as error:
                error.add_note(crew.last_words())
                raise
            finally:
                crew.dismiss()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _soak(ground: Ground, crew: Crew, folder: Path, seconds: float, rate: float) -> Outcome:
    for name in (ENQUEUER, VETERAN, *(f"mortal{number}" for number in range(MORTALS))):
        crew.hire(name)
    finished = "select exists (select from holdfast_finished)"
    until("each shard works", lambda: all(ground.query(shard, finished)[0][0] for shard in range(SHARDS)), START)
    deeds = Deeds()
    sampler = Sampler(ground, crew, min(SELDOM, max(OFTEN, seconds / 200)))
    sampler.start()
    try:
        trouble, deadline = Trouble(ground, crew, deeds, seconds), time.monotonic() + seconds
        while time.monotonic() < deadline and sampler.failure is None:
            trouble.step()
            time.sleep(0.05)
        ground.heal()
        _stop_enqueueing(crew, folder, deeds)
        _drain(ground)
        left = ground.left()
    finally:
        sampler.stopped.set()
        sampler.join()
    if sampler.failure is not None:
        raise sampler.failure
    sampler.look()
    _note_ended(crew, deeds, VETERAN)
    crew.dismiss()
    return Outcome(
        seconds,
        rate,
        read(folder / "answers"),
        list(sampler.finished.values()),
        {
            (shard, tag, what): times
            for shard in range(SHARDS)
            for tag, what, times in ground.query(shard, "select tag, what, times from effects")
        },
        left,
        History.read((folder / "history").glob("*.jsonl")),
        sampler.samples,
        deeds,
    )


def _stop_enqueueing(crew: Crew, folder: Path, deeds: Deeds) -> None:
    (folder / "stop").touch()
    [enqueuer] = [member for member in crew.members if member.name == ENQUEUER]
    if enqueuer.process.wait(START):
        deeds.add("ended by itself", f"{ENQUEUER} with {enqueuer.process.returncode}: {crew.last_words()}")


def _note_ended(crew: Crew, deeds: Deeds, name: str) -> None:
    for member in crew.members:
        if member.name == name and not member.alive:
            deeds.add("ended by itself", f"{name} with {member.process.returncode}: {crew.last_words()}")


def _drain(ground: Ground) -> None:
    """Let the workers finish everything; they have time for as long as it becomes less."""
    least, moved = ground.backlog(), time.monotonic()
    while (left := ground.backlog()) and time.monotonic() < moved + DRAIN:
        if left < least:
            least, moved = left, time.monotonic()
        time.sleep(0.2)
