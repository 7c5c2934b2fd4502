"""An application whose runs have remote steps done by others; also served by worker processes that tests kill."""

import asyncio
import os
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry, Run
from holdfast.errors import StepFailed

QUICK = Retry(max_attempts=5, first_delay=0.01, factor=1.0, max_delay=0.01, jitter=0.0)
ONCE = Retry(max_attempts=1)


async def tried(run: Run, step: str, given: Any, **options: Any) -> Any:
    """Have a step done; a failure becomes what is known of it."""
    try:
        return await run.remote(step, given, **options)
    except StepFailed as error:
        return {"type": error.type, "text": error.text, "code": error.code}


def declare(hf: Holdfast, notes: Path | None = None) -> None:
    """Register the workflows."""

    @hf.workflow(lease=2)
    async def many(run: Run, steps: list[list[Any]]) -> list[Any]:
        return list(await asyncio.gather(*(tried(run, step, given, retry=QUICK) for step, given in steps)))

    @hf.workflow(lease=2)
    async def one(run: Run, step: str, given: Any) -> Any:
        found = await run.remote(step, given, retry=QUICK)
        if notes is not None:
            await run.step(write, str(found), name="write")
        return found

    @hf.workflow(lease=2)
    async def hasty(run: Run, step: str, given: Any, timeout: float) -> Any:
        return await tried(run, step, given, retry=ONCE, timeout=timeout)

    def write(text: str) -> None:
        assert notes is not None
        with notes.open("a") as file:
            file.write(f"run got {text}\n")


hf = Holdfast(os.environ.get("REMOTE_URL", "sqlite:///:memory:"))
hf.remote_engine(
    os.environ.get("REMOTE_PREFIX", "durable"), lost_after=float(os.environ.get("REMOTE_LOST_AFTER", "10")), poll=0.1
)
declare(hf, Path(os.environ["REMOTE_NOTES"]) if "REMOTE_NOTES" in os.environ else None)
