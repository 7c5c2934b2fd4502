"""A worker of the PyPI package `durable-worker`, for steps that another engine dispatches; a child process of tests.

Its settings are one JSON object: folder (of the package), url, dialect, prefix, notes, and if need be steps, leaseMs,
deleteLateMs and create; or sqs, with what boto3's client is made of.
deleteLateMs: the process stalls for that long before each delete of a task. create: it makes the tables itself.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

SAID = json.loads(sys.argv[1])
# MySQL's and MariaDB's code.
DEADLOCK = 1213
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


async def slow(ms: int) -> str:
    note(f"slow began {os.getpid()}")
    await asyncio.sleep(ms / 1000)
    note(f"slow ended {os.getpid()}")
    return "slow"


def is_first(step: str) -> bool:
    """Note that a step has begun, and tell whether no worker did before."""
    first = not (notes.exists() and step in notes.read_text())
    note(f"{step} {os.getpid()}")
    return first


async def hangs_once(value: Any) -> str:
    if is_first("hangs_once"):
        await asyncio.sleep(600)
    return "finished by another"


HANDLERS = {
    "echo": echo,
    "nothing": nothing,
    "fails": fails,
    "fatal": fatal,
    "third_time": third_time,
    "nan": nan,
    "slow": slow,
    "hangs_once": hangs_once,
}


def stall(contract: Any, seconds: float) -> None:
    """Have the process stall between the result and the delete of its task."""
    delete_task = contract.delete_task

    def late(self: Any) -> Any:
        time.sleep(seconds)
        note("deleted late")
        return delete_task(self)

    contract.delete_task = late


async def serve() -> None:
    from durable_worker import db_runner  # type: ignore[import-not-found,unused-ignore]

    if "deleteLateMs" in SAID:
        stall(db_runner._Contract, SAID["deleteLateMs"] / 1000)

    async def one(step: str) -> None:
        await db_runner.run_db_worker(
            worker,
            group=step,
            dsn=SAID["url"],
            dialect=SAID["dialect"],
            prefix=SAID.get("prefix", "durable"),
            poll_ms=20,
            lease_ms=SAID.get("leaseMs", 30_000),
            # Where the engine has made the tables: this package makes its own without a lock.
            auto_create=SAID.get("create", False),
        )

    async def restarted(step: str) -> None:
        """As a supervisor does: on MariaDB workers of this package deadlock in their claims, and die of that."""
        while True:
            try:
                return await one(step)
            except Exception as error:
                if error.args[:1] != (DEADLOCK,):
                    raise
                note("died of a deadlock")

    await asyncio.gather(*(restarted(step) for step in SAID.get("steps", HANDLERS)))


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
