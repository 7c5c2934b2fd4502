"""Drain workers by hand: the registry says so, and each stops when its next beat hears of it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.admin.recording import record
from holdfast.errors import ConfigError
from holdfast.flow import Steps, ask, flow, text_of
from holdfast.life import merging
from holdfast.life.listing import Drained
from holdfast.placing import on_every
from holdfast.worker import registry


@on_every(merging.drained)
@flow
def drain(
    named: str | Iterable[str] | None, host: str | None, actor: str | None, dry_run: bool = False
) -> Steps[Drained]:
    """Ask live workers to claim no more, finish what they run, and stop: those named, or all on a host.

    One that drains already, that is gone or that the registry does not know is left alone. When a worker was last seen
    stays as it is: only its own beat is a sign of life.
    Commits: its own. Raises: ConfigError unless workers or a host are named. After a crash: nothing happened; safe to
    repeat, and a repeat after a lost reply tells them as draining.
    """
    if (named is None) == (host is None):
        raise ConfigError("worker", 'name workers by id, or host="web1" for all that run there', named)
    known = {worker.id: worker for worker in (yield from registry.workers())}
    if named is None:
        ids = [worker.id for worker in known.values() if worker.info.get("host") == host and not worker.is_gone]
    else:
        ids = list(dict.fromkeys([named] if isinstance(named, str) else named))
    left: dict[str, str] = {one: known[one].status if one in known else "unknown" for one in ids}
    alive = [one for one in ids if left[one] == "alive"]
    asked = alive if dry_run or not alive else (yield from _ask(alive, actor))
    if len(asked) < len(alive):
        # What was alive and was not asked has ended since: the registry said so first.
        now = {worker.id: worker.status for worker in (yield from registry.workers())}
        left |= {one: now.get(one, "unknown") for one in alive}
    return Drained(asked, {one: why for one, why in left.items() if one not in asked})


def _ask(ids: list[str], actor: str | None) -> Steps[list[str]]:
    rows = yield from ask("workers_drain", ids=sorted(ids))
    asked = {text_of(row[0]) for row in rows}
    done = [one for one in ids if one in asked]
    yield from record("worker_drain", actor, [(None, {"worker": worker}) for worker in done])
    return done
