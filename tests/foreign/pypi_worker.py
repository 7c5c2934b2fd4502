"""A worker of the PyPI package `durable-worker`, for steps that another engine dispatches; a child process of tests.

Its settings are one JSON object: folder (of the package), url, dialect, prefix, notes, poll_ms, lease_ms; or sqs, with
what boto3's client is made of.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

SAID = json.loads(sys.argv[1])
sys.path.append(SAID["folder"])

from durable_worker import FatalError, Worker  # noqa: E402  # type: ignore[import-not-found,unused-ignore]

notes = Path(SAID["notes"])
worker = Worker()
counts: dict[str, int] = {}


def note(text: str) -> None:
    with notes.open("a") as file:
        file.write(text + "\n")


def echo(value: Any) -> Any:
    return {"echo": value, "by": "pypi"}


def nothing(value: Any) -> None:
    return None


def fails(value: Any) -> None:
    note(f"fails {value}")
    raise ValueError(f"no {value}")


def fatal(value: Any) -> None:
    note("fatal")
    raise FatalError("never", code="E_NEVER")


def third_time(value: Any) -> int:
    counts[str(value)] = counts.get(str(value), 0) + 1
    note(f"third_time {value} {counts[str(value)]}")
    if counts[str(value)] < 3:
        raise ValueError("not yet")
    return counts[str(value)]


def nan(value: Any) -> float:
    """What this package writes of it is not JSON."""
    return float("nan")


HANDLERS = {"echo": echo, "nothing": nothing, "fails": fails, "fatal": fatal, "third_time": third_time, "nan": nan}


async def serve() -> None:
    from durable_worker.db_runner import run_db_worker  # type: ignore[import-not-found,unused-ignore]

    async def one(step: str) -> None:
        await run_db_worker(
            worker,
            group=step,
            dsn=SAID["url"],
            dialect=SAID["dialect"],
            prefix=SAID["prefix"],
            poll_ms=20,
            # The engine has made the tables; this package makes its own without a lock.
            auto_create=False,
        )

    await asyncio.gather(*(one(step) for step in HANDLERS))


def serve_sqs() -> None:
    import boto3
    from durable_worker.sqs_runner import run_sqs_worker  # type: ignore[import-not-found,unused-ignore]

    def one(step: str) -> None:
        client = boto3.session.Session().client("sqs", **SAID["sqs"])
        run_sqs_worker(worker, group=step, prefix=SAID["prefix"], client=client, wait_time_seconds=1)

    for step in SAID["steps"]:
        threading.Thread(target=one, args=(step,)).start()


for name, handler in HANDLERS.items():
    worker.step(name)(handler)
print(json.dumps({"ready": True}), flush=True)
if "sqs" in SAID:
    serve_sqs()
else:
    asyncio.run(serve())
