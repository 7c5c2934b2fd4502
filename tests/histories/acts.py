"""What a handler may do to its job; which it does, attempt by attempt, is in the job's payload."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import Cancel, Fatal, Job, Retry, Snooze
from tests.histories.log import Log

LEASE = 1.5
TIMEOUT = 0.5

# Before the effect, by any handler.
PLAIN = ("raise", "fatal", "retry", "snooze", "cancel", "long", "block", "exit")
# Around the effect, by handlers that have one in a transaction.
INSIDE = ("raise inside", "exit inside", "exit after", "slow")
# By those whose effect is in `job.transaction()`: the database, or a neighbouring call, ends it under them.
BROKEN = ("swallow", "torn")
# By those with a time-out.
LATE = ("late", "late inside")
# By those without an effect: a job that they enqueue on the worker's own connections.
SPAWN = ("spawn",)
ALL = (*PLAIN, *INSIDE, *BROKEN, *LATE, *SPAWN)
# Those that a handler returns.
OUTCOMES = ("retry", "snooze", "cancel")
KILLERS = ("exit", "exit inside", "exit after")


class Trouble(Exception):
    """What a handler raises that has enough of it."""


@contextmanager
def attempt(log: Log, job: Job, tag: str, acts: list[str]) -> Iterator[str]:
    """Write down that a handler started and how it ended; gives what it is to do."""
    about = {"job": job.id, "fence": job.fence, "attempt": job.attempt}
    act = act_of(job, acts)
    log.write("started", **about, tag=tag, most=job.max_attempts, act=act)
    try:
        yield act
    except BaseException as error:
        log.write("ended", **about, how=type(error).__name__)
        raise
    log.write("ended", **about, how=act if act in OUTCOMES else "returned")


def act_of(job: Job, acts: list[str]) -> str:
    """Choose by the attempt; the last act counts for all that follow."""
    act = acts[min(job.attempt, len(acts)) - 1]
    # A snoozed attempt is not counted, so its act would come round for ever.
    return "ok" if act == "snooze" and job.fence > 1 else act


def pause(act: str) -> float:
    """How many seconds a handler waits before it goes on."""
    return {"long": LEASE * 1.5, "late": TIMEOUT * 3}.get(act, random.expovariate(1 / 0.01))


def block(act: str) -> None:
    """Keep the whole event loop from running for longer than a lease."""
    if act == "block":
        time.sleep(LEASE * 1.2)


def answer(act: str) -> Any:
    """Do what ends an attempt before its effect: return an outcome, raise, or take the process along."""
    match act:
        case "raise":
            raise Trouble("as told")
        case "fatal":
            raise Fatal("as told", code="told")
        case "retry":
            return Retry.after(0.1, "as told")
        case "snooze":
            return Snooze(0.2, "as told")
        case "cancel":
            return Cancel("as told")
        case "exit":
            os._exit(9)
        case _:
            return None


def inside(act: str) -> None:
    """Fail between an effect and its commit."""
    if act == "raise inside":
        raise Trouble("as told, inside")
    if act == "exit inside":
        os._exit(9)


def after(act: str) -> None:
    """Die between the commit and the moment when the worker hears of it."""
    if act == "exit after":
        os._exit(9)
