"""The application whose steps the real engine dispatches; also served by worker processes that tests kill."""

import os
import time
from pathlib import Path
from typing import Any

from holdfast import Fatal, Holdfast, Job

hf = Holdfast(os.environ.get("CONTRACT_URL", "postgresql://nobody@127.0.0.1/nothing"))
steps = hf.foreign.durable(
    prefix=os.environ.get("CONTRACT_PREFIX", "durable"), lease=int(os.environ.get("CONTRACT_LEASE", "2"))
)
NOTES = Path(os.environ.get("CONTRACT_NOTES", "/dev/null"))


def note(text: str) -> None:
    """Write a line that outlives the process."""
    with NOTES.open("a") as file:
        file.write(text + "\n")


@steps.step("echo")
async def echo(value: Any) -> Any:
    return {"echo": value, "by": "python"}


@steps.step("nothing")
def nothing() -> None:
    note("nothing")


@steps.step("a:b.c")
async def colons(value: int, job: Job) -> dict[str, Any]:
    return {"value": value + 1, "run": job.headers["run_id"], "step": job.headers["step_id"]}


@steps.step("fails")
def fails(value: Any, job: Job) -> None:
    note(f"fails {job.attempt}")
    raise ValueError(f"attempt {job.attempt} of {value}")


@steps.step("third_time")
def third_time(value: Any, job: Job) -> str:
    note(f"third_time {job.attempt}")
    if job.attempt < 3:
        raise ConnectionError("not yet")
    return f"after {job.attempt}"


@steps.step("fatal")
def fatal(value: Any, job: Job) -> None:
    note(f"fatal {job.attempt}")
    raise Fatal("no such order", code="missing")


@steps.step("slow")
def slow(value: float) -> str:
    note(f"slow began {os.getpid()}")
    time.sleep(value)
    note(f"slow ended {os.getpid()}")
    return "slow but once"


@steps.step("hangs_once")
def hangs_once(value: Any) -> str:
    first = "hangs" not in (NOTES.read_text() if NOTES.exists() else "")
    note(f"hangs_once {os.getpid()}")
    if first:
        time.sleep(600)
    return "finished by another"
