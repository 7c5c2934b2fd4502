"""What the admin's buttons and actions do to jobs: by the flows of `holdfast.admin`, which write the audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import admin
from holdfast.errors import HoldfastError
from holdfast.values.words import one_line, plural


@dataclass(frozen=True)
class Done:
    """What a deed came to, for the people who asked for it. left: which jobs it left alone, and why."""

    said: str
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Deed:
    """Something that can be done to jobs.

    permission: the codename that it needs. asks: what is asked before it is done; None where nothing is lost by it.
    states: the states of jobs whose page has a button for it.
    """

    name: str
    label: str
    permission: str
    act: Callable[[Sequence[str], str], Done]
    states: tuple[str, ...]
    asks: str | None = None


def _retry(ids: Sequence[str], actor: str) -> Done:
    from holdfast.django import hf

    done, left = 0, list[str]()
    for job in ids:
        try:
            # Not `retry`, which replays what is dead or cancelled: that is a permission of its own.
            hf.store.run(admin.run_now(job, actor))
            done += 1
        except HoldfastError as error:
            left.append(one_line(error, 300))
    return Done(f"{plural(done, 'job')} will run as soon as possible.", left)


def _cancel(ids: Sequence[str], actor: str) -> Done:
    from holdfast.django import hf

    answer = hf.cancel(ids, actor=actor)
    said = f"{plural(len(answer.cancelled), 'job')} cancelled"
    asked = f", {len(answer.requested):,} asked to stop" if answer.requested else ""
    return Done(f"{said}{asked}.", [f"{job} was left alone: {why}." for job, why in answer.left.items()])


def _replay(ids: Sequence[str], actor: str) -> Done:
    from holdfast.django import hf

    answer = hf.store.run(admin.replay(_letters(ids), len(ids), actor))
    left = [_stays(job, holder) for job, holder in answer.conflicts.items()]
    return Done(f"{plural(len(answer.ids), 'job')} replayed.", left + _others(ids, {*answer.ids, *answer.conflicts}))


def _discard(ids: Sequence[str], actor: str) -> Done:
    from holdfast.django import hf

    gone = hf.store.run(admin.discard(_letters(ids), len(ids), actor))
    return Done(f"{plural(len(gone), 'job')} discarded.", _others(ids, set(gone)))


def _letters(ids: Sequence[str]) -> admin.Filter:
    return admin.Filter(ids=tuple(ids), states=admin.REPLAYABLE)


def _stays(job: str, holder: str | None) -> str:
    return f"{job} stays: {f'job {holder} holds' if holder else 'another job held'} its unique key."


def _others(ids: Sequence[str], taken: set[str]) -> list[str]:
    return [f"{job} was left alone: it is not dead or cancelled." for job in ids if job not in taken]


_ENDS = "Jobs that wait end as cancelled and never run. Workers of jobs that run are asked to stop them."
_GONE = "They are deleted with their payload and errors. The audit keeps kind, queue and last error."
RETRY = Deed("retry", "Run now", "retry_job", _retry, ("pending", "waiting"))
CANCEL = Deed("cancel", "Cancel", "cancel_job", _cancel, ("pending", "waiting", "leased"), _ENDS)
REPLAY = Deed("replay", "Replay", "replay_finishedjob", _replay, admin.REPLAYABLE)
DISCARD = Deed("discard", "Discard", "discard_finishedjob", _discard, admin.REPLAYABLE, _GONE)
