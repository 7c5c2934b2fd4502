"""What `doctor` looks at: each check is a function that reads the database and returns findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import combinations

from holdfast import admin, lines
from holdfast import schedules as ticking
from holdfast.admin import JobsDesk, health
from holdfast.cli import remote as remote_steps
from holdfast.cli.queues import declared
from holdfast.cli.render import age, one_line, plural
from holdfast.cli.shared import missing_file, typed
from holdfast.cli.stores import Opened
from holdfast.errors import DatabaseUnavailable, StoreError
from holdfast.life.findings import Finding
from holdfast.store import migrate, shard_map
from holdfast.values.views import WorkerInfo
from holdfast.worker import registry
from holdfast.worker.registry import status_of

# Autovacuum starts on the jobs table at 1,000 dead rows and 2 %; far more than that means that it cannot clean.
DEAD_ROWS = 50_000
CLOCK_DIFFERENCE_SECONDS = 1.0
STOPPED_READ = 1_000
ECHO_SECONDS = 2.0


class Patient:
    """What is under examination; what several checks need is read once."""

    def __init__(self, at: Opened, lag: timedelta, long: timedelta) -> None:
        self.at = at
        self.store = at.store
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

    @property
    def served(self) -> dict[str, set[str]]:
        """The queues that live workers serve, each with the kinds that they handle there."""
        return registry.served(self.alive)


Check = Callable[[Patient], Iterator[Finding]]


def schema(patient: Patient) -> Iterator[Finding]:
    at, needed = patient.version, patient.store.schema_version
    if at == 0:
        where = missing_file(patient.store)
        seen = f"there is no database file {where}" if where else "there are no Holdfast tables under this prefix"
        yield Finding("schema", "problem", seen, "run `holdfast migrate apply`")
    elif at != needed:
        cure = "run `holdfast migrate apply`" if at < needed else "upgrade holdfast here"
        yield Finding("schema", "problem", f"the tables are at version {at}, this holdfast needs {needed}", cure)
    else:
        yield Finding("schema", "ok", f"the tables are at version {at}")


def of_rows(name: str) -> Check:
    """Make the check of one thing that the desk looks at in its rows."""

    def check(patient: Patient) -> Iterator[Finding]:
        lag = patient.lag.total_seconds()
        yield from patient.store.run(patient.at.desk.examine(lag, served=patient.served, only=name))

    return check


def workers(patient: Patient) -> Iterator[Finding]:
    for worker in patient.workers:
        if status_of(worker) == "silent":
            where = f"host {worker.info.get('host')}, pid {worker.info.get('pid')}"
            seen = f"{worker.id} ({where}) has been silent for {age(worker.silent_for)}"
            do = "see whether it hangs or lost the database; its jobs come back when their leases end"
            yield Finding("workers", "warning", seen, do)
    yield from _strangers(patient.alive)
    count, gone = len(patient.alive), _gone(patient.workers)
    if count:
        yield Finding("workers", "ok", f"{plural(count, 'live worker')}{gone}")
    elif patient.store.run(admin.any_live()):
        seen = f"there is work and no live worker{gone}"
        yield Finding("workers", "problem", seen, "start one: `holdfast worker APP`")
    else:
        yield Finding("workers", "ok", "no live worker, and nothing to do" + gone)


def _strangers(alive: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Find applications that share these tables and a kind: each gets jobs of the other."""
    told: set[tuple[str, str]] = set()
    for one, other in combinations(alive, 2):
        pair = (_application(one), _application(other))
        shared = registry.shared_kinds(one.info, other.info)
        if pair in told or not shared:
            continue
        told |= {pair, pair[::-1]}
        seen = f"{one.id} runs {pair[0]} and {other.id} runs {pair[1]}, and both handle {', '.join(shared[:3])}"
        do = "give each application tables of its own (prefix= or schema=), or their kinds other names"
        yield Finding("workers", "warning", f"{seen}: each takes jobs of the other", do)


def _application(worker: WorkerInfo) -> str:
    return ", ".join(worker.info.get("packages", ()))


def _gone(known: Sequence[WorkerInfo]) -> str:
    """Tell those that ended by themselves from those that fell silent."""
    stopped = sum(worker.status == "stopped" for worker in known)
    dead = [worker for worker in known if worker.status == "dead"]
    told = [f"{stopped} stopped"] if stopped else []
    if dead:
        last = min(dead, key=lambda worker: worker.silent_for)
        told.append(f"{len(dead)} dead, the last of them {last.id} ({age(last.silent_for)} ago)")
    return "".join(f"; {one}" for one in told)


def remote(patient: Patient) -> Iterator[Finding]:
    yield from remote_steps.examined(patient.store)


def schedules(patient: Patient) -> Iterator[Finding]:
    yield from patient.store.run(ticking.examine([worker.info for worker in patient.alive]))


def queues(patient: Patient) -> Iterator[Finding]:
    stored, said = patient.store.run(lines.stored()), declared()
    differ = [name for name in sorted(said) if name in stored and stored[name].settings != said[name]]
    for name in differ:
        seen = f"queue {name}: stored is {stored[name].settings}, which counts; the code says {said[name]}"
        yield Finding("queues", "warning", seen, "`holdfast queues adopt APP` stores what the code says")
    stopped = patient.store.run(admin.list_lines(stopped=True, limit=STOPPED_READ))
    if stopped:
        first = stopped[0]
        count = f"{STOPPED_READ} or more lines" if len(stopped) == STOPPED_READ else plural(len(stopped), "line")
        why = f"for dead letter {first.stopped_for}" if first.stopped_for else "by hand"
        seen = f"{count} stopped; the first is {first.key} of {first.queue}, {why}, with {first.waiting:,} waiting"
        do = "replay or discard what stopped it, or `holdfast lines start QUEUE KEY`"
        yield Finding("queues", "warning", seen, do)
    if not differ and not stopped:
        yield Finding("queues", "ok", f"{plural(len(stored), 'queue')} with order or limits, and no line is stopped")


def transactions(patient: Patient) -> Iterator[Finding]:
    if not patient.store.dialect.ends_holder:
        return
    found = patient.store.run(health.long_transactions(patient.long))
    cures = {
        "session": "end it: `{end}`",
        "prepared": "commit it, or `{end}`",
        "slot": "let its consumer catch up, or `{end}`",
    }
    for one in found:
        old = f"open for {age(one.age)}" if one.age is not None else f"{one.xmin_age:,} transactions behind"
        who = ", ".join(str(part) for part in (one.name, one.application, one.state) if part)
        seen = f"{one.holder} {one.pid or ''} ({who}) {old}: dead rows cannot be cleaned while it lasts"
        end = patient.store.dialect.ends_holder[one.holder].format(pid=one.pid, name=one.name)
        yield Finding("transactions", "warning", " ".join(seen.split()), cures[one.holder].format(end=end))
    if not found:
        yield Finding("transactions", "ok", f"none has been open for more than {age(patient.long)}")


def tables(patient: Patient) -> Iterator[Finding]:
    bloated, clean = False, patient.store.dialect.cleans_table
    for table in patient.store.run(health.table_health()):
        dead, live = table.dead_rows or 0, table.live_rows or 0
        if clean and dead > max(DEAD_ROWS, live):
            bloated = True
            last = "never" if table.last_autovacuum is None else f"{age(datetime.now(UTC) - table.last_autovacuum)} ago"
            seen = f"{table.table}: {dead:,} dead rows beside {live:,} live ones; last autovacuum {last}"
            by_hand = f"`{clean.format(table=table.table)}`"
            do = f"end what keeps the database from cleaning up dead rows (see transactions), then {by_hand}"
            yield Finding("tables", "warning", seen, do)
    if not bloated:
        yield Finding("tables", "ok", "no table carries many dead rows")


def indexes(patient: Patient) -> Iterator[Finding]:
    missing = patient.store.run(health.missing_indexes())
    for name in missing:
        mind = f" ({advice})" if (advice := patient.store.dialect.remakes_index) else ""
        do = f"create it again as `holdfast migrate sql` shows{mind}"
        yield Finding("indexes", "problem", f"{name} is missing or not valid: claims get slow", do)
    if not missing:
        yield Finding("indexes", "ok", "all are there")


def listener(patient: Patient) -> Iterator[Finding]:
    store = patient.store
    if not store.dialect.notifies:
        return
    if not store.options.notify:
        yield Finding("listener", "ok", "wake-ups are switched off (notify): workers poll")
        return
    heard, pooled = store.echo(ECHO_SECONDS)
    listening = len(store.run(health.listener_state()))
    through = "through a pooler (PgBouncer?), " if pooled else ""
    do = "set listen_url (HOLDFAST_LISTEN_URL) to the server's own address; until then workers only poll"
    if heard:
        yield Finding("listener", "ok", f"{through}a notification came back; {plural(listening, 'listening worker')}")
    elif listening:
        seen = f"{through}no notification came back, but {plural(listening, 'worker')} listen at another address"
        yield Finding("listener", "ok", seen)
    else:
        yield Finding("listener", "warning", f"{through}LISTEN heard nothing in {ECHO_SECONDS:g} s", do)


def standbys(patient: Patient) -> Iterator[Finding]:
    found = patient.store.run(health.standbys())
    if found is None:
        return
    many = f"{plural(found.following, 'standby', 'standbys')} follow{'s' if found.following == 1 else ''}"
    if found.read_only:
        seen = "the server takes no writes: it is a standby, or set to be read-only"
        do = "name the primary in the URL, or all hosts: postgresql://user@a,b/shop; a failover may be under way"
        yield Finding("standbys", "problem", seen, do)
    elif found.waits and not found.synchronous and not found.hidden:
        seen = f"commits wait for a synchronous standby, and none is connected ({many}): nothing can be committed"
        yield Finding("standbys", "problem", seen, "start it, or take it out of synchronous_standby_names")
    elif not found.following:
        yield Finding("standbys", "ok", "no standby follows: there is nothing to fail over to")
    elif found.hidden:
        yield Finding("standbys", "ok", f"{many}; whether commits wait for it, this role may not see (pg_monitor)")
    elif found.waits:
        yield Finding("standbys", "ok", f"{many}, and commits wait for {found.synchronous}")
    else:
        yield Finding("standbys", "ok", f"{many}, and no commit waits: a failover loses what has not arrived there")


def encoding(patient: Patient) -> Iterator[Finding]:
    name = patient.store.encoding()
    if name is None:
        return
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
    theirs = patient.store.run(health.clock()).timestamp()
    took = time.time() - began
    difference = theirs - (began + took / 2)
    if abs(difference) - took / 2 > CLOCK_DIFFERENCE_SECONDS:
        way = "ahead of" if difference > 0 else "behind"
        seen = f"the database's clock is {abs(difference):.1f} s {way} this host's"
        yield Finding("clocks", "warning", seen, "set both by NTP; jobs go by the database's, your logs by the host's")
    else:
        yield Finding("clocks", "ok", "host and database agree within a second")


def foreign(patient: Patient) -> Iterator[Finding]:
    """Look at foreign tables, each where it is: those of the application, or what --store named."""
    for other in patient.at.foreign:
        try:
            for found in other.look(other.desk.examine(patient.lag.total_seconds())):
                yield Finding("foreign", found.severity, f"{other.desk.name}: {found.seen}", found.do)
        except DatabaseUnavailable as error:
            do = "see why it does not answer; what is in it waits, other jobs go on"
            yield Finding("foreign", "problem", f"{other.desk.name}: {one_line(error)}", do)


def shards(patient: Patient) -> Iterator[Finding]:
    """Find a shard that is taken for all; how several stand is asked of all of them at once (`shard_checks`)."""
    stored = patient.store.run(shard_map.read())
    if stored is not None and (why := stored.not_alone):
        do = "what is enqueued here alone may belong to another shard, and the jobs of the others are not seen"
        yield Finding("shards", "problem", why, do)


# In the order of the runbook: what users feel first.
CHECKS: dict[str, Check] = {
    "shards": shards,
    "schema": schema,
    **{name: of_rows(name) for name in JobsDesk.checks},
    "workers": workers,
    "remote": remote,
    "schedules": schedules,
    "queues": queues,
    "foreign": foreign,
    "transactions": transactions,
    "tables": tables,
    "indexes": indexes,
    "listener": listener,
    "standbys": standbys,
    "encoding": encoding,
    "clocks": clocks,
}
# What can be looked at without tables.
WITHOUT_TABLES = ("schema", "foreign", "transactions", "listener", "standbys", "encoding", "clocks")


def examine(patient: Patient, skip: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Run the checks in order; one that the database refuses is a finding itself."""
    wanted = [name for name in CHECKS if name not in skip] if patient.at.is_whole else ["foreign"]
    # Read first, and once: a database that is down is told as such, at once.
    usable = patient.version == patient.store.schema_version
    if missing_file(patient.store):
        wanted = [name for name in wanted if name == "schema"]
    for name in wanted:
        if not usable and name not in WITHOUT_TABLES:
            continue
        try:
            for found in CHECKS[name](patient):
                yield replace(found, seen=typed(found.seen), do=typed(found.do))
        except StoreError as error:
            right = patient.store.dialect.shows_holders if name == "transactions" else ""
            needs = f"let an administrator `{right}`" if right else "give the database user what this needs"
            do = f"{needs}, or leave it out with --skip {name}"
            yield Finding(name, "warning", f"could not be looked at: {one_line(error.detail or error, 300)}", do)
