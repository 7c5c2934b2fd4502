"""What `doctor` looks at: each check is a function that reads the database and returns findings."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from holdfast import admin
from holdfast.admin import health
from holdfast.cli.foreign import groups
from holdfast.cli.render import age, one_line, plural
from holdfast.cli.shared import missing_file
from holdfast.cli.workers import status_of
from holdfast.errors import StoreError
from holdfast.flow import Steps, ask, flow
from holdfast.foreign import checkup, views
from holdfast.foreign.views import Shown
from holdfast.store import migrate
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.store.sessions import translated
from holdfast.values.rows import when
from holdfast.values.views import DeadGroup, WorkerInfo
from holdfast.worker import registry

if TYPE_CHECKING:
    from holdfast.store import Store

Severity = Literal["ok", "warning", "problem"]

# A reaper looks every second, so a lease that ran out this long ago has nobody to take it back.
UNREAPED = timedelta(seconds=10)
GROUPS_SHOWN = 5
# Autovacuum starts on the jobs table at 1,000 dead rows and 2 %; far more than that means that it cannot clean.
DEAD_ROWS = 50_000
CLOCK_DIFFERENCE = 1.0
ECHO = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how bad it is, what was seen, and what to do about it."""

    check: str
    severity: Severity
    seen: str
    do: str = ""


class Patient:
    """The database under examination; what several checks need is read once."""

    def __init__(self, store: Store, lag: timedelta, long: timedelta, sources: Sequence[Shown] = ()) -> None:
        self.store = store
        self.sources = sources
        self.lag = lag
        self.long = long

    @cached_property
    def version(self) -> int:
        return 0 if missing_file(self.store) else self.store.run_once(migrate.version())

    @cached_property
    def workers(self) -> list[WorkerInfo]:
        return self.store.run(registry.workers())

    @cached_property
    def alive(self) -> list[WorkerInfo]:
        return [worker for worker in self.workers if status_of(worker) == "alive"]

    def served(self, queue: str) -> bool:
        return any(queue in worker.info.get("queues", ()) for worker in self.alive)

    def now(self) -> datetime:
        return self.store.run(clock())


@flow
def clock() -> Steps[datetime]:
    """Read the database's time."""
    [[now]] = yield from ask("clock", alone=True)
    return when(now)


def schema(patient: Patient) -> Iterator[Finding]:
    at = patient.version
    if at == 0:
        where = missing_file(patient.store)
        seen = f"there is no database file {where}" if where else "there are no Holdfast tables under this prefix"
        yield Finding("schema", "problem", seen, "run `holdfast migrate apply`")
    elif at != SCHEMA_VERSION:
        cure = "run `holdfast migrate apply`" if at < SCHEMA_VERSION else "upgrade holdfast here"
        yield Finding(
            "schema", "problem", f"the tables are at version {at}, this holdfast needs {SCHEMA_VERSION}", cure
        )
    else:
        yield Finding("schema", "ok", f"the tables are at version {at}")


def lag(patient: Patient) -> Iterator[Finding]:
    late = False
    for queue in patient.store.run(admin.oldest_pending()):
        waiting = f"queue {queue.queue}: {queue.due:,} due, the oldest for {age(queue.oldest_seconds)}"
        if not patient.served(queue.queue):
            late = True
            do = f"start one: `holdfast worker APP --queues {queue.queue}`"
            yield Finding("lag", "problem", f"{waiting}, and no live worker serves it", do)
        elif queue.oldest_seconds > patient.lag.total_seconds():
            late = True
            look = f"`holdfast jobs list --state pending --oldest --queue {queue.queue}`"
            do = f"add workers or --concurrency; see in {look} whether it is a kind that no worker handles"
            yield Finding("lag", "warning", waiting, do)
    if not late:
        yield Finding("lag", "ok", f"no job has been due for more than {age(patient.lag)}")


def leases(patient: Patient) -> Iterator[Finding]:
    limit = patient.now() - UNREAPED
    expired = [job for job in patient.store.run(admin.expired_leases(100)) if (job.lease_expires_at or limit) < limit]
    if not expired:
        yield Finding("leases", "ok", "no lease ran out unnoticed")
        return
    first = expired[0]
    since = age(patient.now() - (first.lease_expires_at or limit))
    count = "100 or more leases" if len(expired) == 100 else plural(len(expired), "lease")
    seen = (
        f"{count} ran out and nobody took them back; the oldest {since} ago: {first.kind} {first.id}, {first.leased_by}"
    )
    kinds = ", ".join(sorted({job.kind for job in expired}))
    yield Finding("leases", "problem", seen, f"start a worker that handles {kinds}: only those reap them")


def dead_letters(patient: Patient) -> Iterator[Finding]:
    found = patient.store.run(admin.dead_groups(limit=1000))
    now = patient.now()
    for group in found[:GROUPS_SHOWN]:
        error = one_line(f"{group.error_type}: {group.error_message}", 100)
        seen = f"{group.count:,} × {group.kind}, last {age(now - group.last_at)} ago: {error}"
        replay = f"`holdfast dead replay {_only(group)}` (or discard)"
        yield Finding("dead-letters", "warning", seen, f"`holdfast dead show {group.sample_id}`; once fixed, {replay}")
    if rest := found[GROUPS_SHOWN:]:
        seen = f"{plural(len(rest), 'more group')} with {plural(sum(g.count for g in rest), 'dead letter')}"
        yield Finding("dead-letters", "warning", seen, "`holdfast dead groups` lists them")
    if not found:
        yield Finding("dead-letters", "ok", "there are none")


def _only(group: DeadGroup) -> str:
    """Name one line of `dead groups`: several kinds that fail alike share the id of their group."""
    return f"--kind {shlex.quote(group.kind)} --group {group.group}"


def workers(patient: Patient) -> Iterator[Finding]:
    for worker in patient.workers:
        if status_of(worker) == "silent":
            where = f"host {worker.info.get('host')}, pid {worker.info.get('pid')}"
            seen = f"{worker.id} ({where}) has been silent for {age(worker.silent_for)}"
            do = "see whether it hangs or lost the database; its jobs come back when their leases end"
            yield Finding("workers", "warning", seen, do)
    count = len(patient.alive)
    if count:
        yield Finding("workers", "ok", f"{plural(count, 'live worker')}")
    elif patient.store.run(admin.count_jobs(admin.Filter(states=("pending", "leased")))):
        yield Finding("workers", "problem", "there is work and no live worker", "start one: `holdfast worker APP`")
    else:
        yield Finding("workers", "ok", "no live worker, and nothing to do")


def transactions(patient: Patient) -> Iterator[Finding]:
    if patient.store.embedded:
        return
    found = patient.store.run(health.long_transactions(patient.long))
    mysql = patient.store.dialect.name != "postgres"
    cures = {
        "session": "end it: `kill {pid}`" if mysql else "end it: `select pg_terminate_backend({pid})`",
        "prepared": "`commit prepared '{name}'` or `rollback prepared '{name}'`",
        "slot": "let its consumer catch up, or `select pg_drop_replication_slot('{name}')`",
    }
    for one in found:
        old = f"open for {age(one.age)}" if one.age is not None else f"{one.xmin_age:,} transactions behind"
        who = ", ".join(str(part) for part in (one.name, one.application, one.state) if part)
        seen = f"{one.holder} {one.pid or ''} ({who}) {old}: dead rows cannot be cleaned while it lasts"
        yield Finding(
            "transactions", "warning", " ".join(seen.split()), cures[one.holder].format(pid=one.pid, name=one.name)
        )
    if not found:
        yield Finding("transactions", "ok", f"none has been open for more than {age(patient.long)}")


def tables(patient: Patient) -> Iterator[Finding]:
    bloated = False
    for table in patient.store.run(health.table_health()):
        dead, live = table.dead_rows or 0, table.live_rows or 0
        if not patient.store.embedded and dead > max(DEAD_ROWS, live):
            bloated = True
            last = "never" if table.last_autovacuum is None else f"{age(datetime.now(UTC) - table.last_autovacuum)} ago"
            seen = f"{table.table}: {dead:,} dead rows beside {live:,} live ones; last autovacuum {last}"
            vacuum = f"`vacuum (analyze) {table.table}`"
            do = f"end what keeps PostgreSQL from cleaning up dead rows (see transactions), then {vacuum}"
            yield Finding("tables", "warning", seen, do)
    if not bloated:
        yield Finding("tables", "ok", "no table carries many dead rows")


def indexes(patient: Patient) -> Iterator[Finding]:
    missing = patient.store.run(health.missing_indexes())
    for name in missing:
        do = (
            "create it again as `holdfast migrate sql` shows (PostgreSQL: concurrently; drop it first if it is invalid)"
        )
        yield Finding("indexes", "problem", f"{name} is missing or not valid: claims get slow", do)
    if not missing:
        yield Finding("indexes", "ok", "all are there")


def listener(patient: Patient) -> Iterator[Finding]:
    store = patient.store
    if store.dialect.name != "postgres":
        return
    if not store.options.notify:
        yield Finding("listener", "ok", "wake-ups are switched off (notify): workers poll")
        return
    heard, pooled = _echo(store)
    listening = len(store.run(health.listener_state()))
    through = "through a pooler (PgBouncer?), " if pooled else ""
    do = "set listen_url (HOLDFAST_LISTEN_URL) to the server's own address; until then workers only poll"
    if heard:
        yield Finding("listener", "ok", f"{through}a notification came back; {plural(listening, 'listening worker')}")
    elif listening:
        seen = f"{through}no notification came back, but {plural(listening, 'worker')} listen at another address"
        yield Finding("listener", "ok", seen)
    else:
        yield Finding("listener", "warning", f"{through}LISTEN heard nothing in {ECHO:g} s", do)


def _echo(store: Store) -> tuple[bool, bool]:
    """Send a notification and see whether it comes back; also tell whether a pooler stands between."""
    from holdfast.store import Store

    channel = f"holdfast_doctor_{secrets.token_hex(6)}"
    ear = Store(store.options.listen_url, store.options) if store.options.listen_url else store
    try:
        with ear.link() as listening, store.link() as speaking:
            pooled = _is_pooled(listening.raw)
            listening.tell(f"listen {channel}")
            speaking.raw.execute("select pg_notify(%s, 'doctor')", (channel,))
            heard = any(True for _ in listening.raw.notifies(timeout=ECHO, stop_after=1))
            listening.tell(f"unlisten {channel}")
    finally:
        if ear is not store:
            ear.close()
    return heard, pooled


def _is_pooled(raw: Any) -> bool:
    # A pooler hands out a process id of its own; the server tells the real one.
    [pid] = raw.execute("select pg_backend_pid()").fetchone()
    return bool(pid != raw.info.backend_pid)


def encoding(patient: Patient) -> Iterator[Finding]:
    if patient.store.dialect.name != "postgres":
        return
    with patient.store.link() as link, translated(link.dialect):
        [name] = link.raw.execute("show server_encoding").fetchone()
    do = "move to a database that was created with encoding 'UTF8' and template template0"
    if name == "SQL_ASCII":
        seen = "the database has no encoding (SQL_ASCII): it keeps our UTF-8, and whatever else others write, unchecked"
        yield Finding("encoding", "warning", seen, do)
    elif name != "UTF8":
        seen = f"the database keeps {name}: a job with a character that this does not have is refused"
        yield Finding("encoding", "warning", seen, do)
    else:
        yield Finding("encoding", "ok", "the database keeps UTF-8")


def clocks(patient: Patient) -> Iterator[Finding]:
    if patient.store.embedded:
        return
    began = time.time()
    theirs = patient.now().timestamp()
    took = time.time() - began
    difference = theirs - (began + took / 2)
    if abs(difference) - took / 2 > CLOCK_DIFFERENCE:
        way = "ahead of" if difference > 0 else "behind"
        seen = f"the database's clock is {abs(difference):.1f} s {way} this host's"
        yield Finding("clocks", "warning", seen, "set both by NTP; jobs go by the database's, your logs by the host's")
    else:
        yield Finding("clocks", "ok", "host and database agree within a second")


def foreign(patient: Patient) -> Iterator[Finding]:
    """Look at the tables that other languages share, one after the other."""
    for source in patient.sources:
        dead = False
        for found in patient.store.run(checkup.examine(source, patient.lag.total_seconds())):
            if found.check == "dead":
                dead = True
            else:
                yield Finding("foreign", found.severity, f"{source.name}: {found.seen}", found.do)
        if dead:
            yield from _foreign_letters(patient, source)


def _foreign_letters(patient: Patient, source: Shown) -> Iterator[Finding]:
    newest = patient.store.run(views.list_failed(source, limit=views.LONGEST_LIST, newest=True))
    found = groups(newest, len(newest))
    for group in found[:GROUPS_SHOWN]:
        error = one_line(f"{group.error_type}: {group.error_message}", 100)
        last = age(patient.now() - group.last_at)
        replay = f"`holdfast dead replay {_only(group)} --store {source.name}` (or discard)"
        do = f"`holdfast dead show {group.sample_id} --store {source.name}`; once fixed, {replay}"
        seen = f"{source.name}: {group.count:,} × {group.kind}, last {last} ago: {error}"
        yield Finding("foreign", "warning", seen, do)
    if rest := found[GROUPS_SHOWN:]:
        seen = f"{plural(len(rest), 'more group')} with {plural(sum(g.count for g in rest), 'dead letter')}"
        do = f"`holdfast dead groups --store {source.name}` lists them"
        yield Finding("foreign", "warning", f"{source.name}: {seen}", do)


Check = Callable[[Patient], Iterator[Finding]]

# In the order of the runbook: what users feel first.
CHECKS: dict[str, Check] = {
    "schema": schema,
    "lag": lag,
    "leases": leases,
    "dead-letters": dead_letters,
    "workers": workers,
    "foreign": foreign,
    "transactions": transactions,
    "tables": tables,
    "indexes": indexes,
    "listener": listener,
    "encoding": encoding,
    "clocks": clocks,
}
# What can be looked at without tables.
WITHOUT_TABLES = ("schema", "foreign", "transactions", "listener", "encoding", "clocks")


def examine(patient: Patient, skip: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Run the checks in order; one that the database refuses is a finding itself."""
    # Read first, and once: a database that is down is told as such, at once.
    usable = patient.version == SCHEMA_VERSION
    if missing_file(patient.store):
        skip += tuple(name for name in CHECKS if name != "schema")
    for name, check in CHECKS.items():
        if name in skip or (not usable and name not in WITHOUT_TABLES):
            continue
        try:
            yield from check(patient)
        except StoreError as error:
            do = f"give the database user what this needs, or leave it out with --skip {name}"
            yield Finding(name, "warning", f"could not be looked at: {one_line(error)}", do)
