"""`--store pdo:jobs`, `--store durable:durable`: the commands on tables that programs in other languages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import click

from holdfast.cli.render import plural, print_json, print_notes
from holdfast.cli.shared import Exit, Failure, confirm, current, did_you_mean, missing_file
from holdfast.errors import Conflict, ForeignTablesMissing
from holdfast.foreign import views
from holdfast.foreign.pdo import dead as pdo_dead
from holdfast.foreign.pdo.dead import Replays
from holdfast.foreign.pdo.flows import PdoTables
from holdfast.foreign.views import After, Shown, Wanted
from holdfast.values.views import DeadGroup, JobView

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.flow import Flow
    from holdfast.foreign import DurableSteps, PdoQueue
    from holdfast.store import Store

Read = Callable[..., "Flow[list[JobView]]"]

# What --store may say after a question mark, where no application does, and how it is read.
SETTINGS: dict[str, dict[str, Callable[[str], Any]]] = {
    "pdo": {"failed_table": str, "timezone": str, "retry_after": int},
    "durable": {"lease": float},
}
DEFAULTS = {"pdo": "jobs", "durable": "durable"}
PAGE = 500
CHUNK = 500


class Shared:
    """The tables that --store names, and the store that they are in."""

    def __init__(self, source: PdoQueue | DurableSteps, store: Store) -> None:
        self.source = source
        self.store = store
        self.name = source.name

    def retry(self, row_id: str) -> str:
        """Make a waiting row due."""
        self.store.run(views.make_due(self.source, row_id))
        return "due"

    def found(self, read: Read, wanted: Wanted, after: After = None, newest: bool = False) -> Iterator[JobView]:
        """Read what is wanted page by page: some of it cannot be asked of the tables."""
        while True:
            page = self.store.run(read(self.source, wanted, limit=PAGE, after=after, newest=newest))
            yield from filter(wanted.fits, page)
            if len(page) < PAGE:
                return
            after = page[-1]

    def one(self, read: Read, row_id: str) -> JobView:
        for row in self.found(read, Wanted(ids=(row_id,))):
            return row
        gone = "what is finished is deleted" if read is views.list_rows else "replayed and discarded ones are deleted"
        raise Failure(f"there is no row {row_id} in {self.name}", Exit.NOT_FOUND, gone)

    @property
    def letters(self) -> PdoTables:
        """The tables that dead letters are in. Raises: Conflict where there are none."""
        if isinstance(self.source.tables, PdoTables):
            return self.source.tables
        raise Conflict(
            f"{self.name} keeps no dead letters: a failed step is the engine's, with its run. "
            "Look at the run there; it decides on retries."
        )


@contextmanager
def open_source(*, tables: bool = True, create: bool = False) -> Iterator[Shared]:
    """Open what --store names and close it afterwards; `tables` makes sure that they are there, unless to `create`."""
    settings = current()
    app = settings.application()
    if app is not None:
        source = _known(app, settings.foreign or "")
    else:
        app = _plain_app()
        source = _made(app, settings.foreign or "")
    try:
        if not create:
            _require(source, app.store, tables)
        yield Shared(source, app.store)
    finally:
        app.store.close()


def _require(source: Shown, store: Store, tables: bool) -> None:
    """Raise unless the database answers, and has the tables if they are needed. Asks once, as a person waits."""
    if absent := missing_file(store):
        make = f"`holdfast migrate apply --store {source.name}` creates it"
        raise Failure(f"there is no database file {absent}", Exit.SCHEMA, make)
    missing = store.run_once(views.missing(source))
    if missing and tables:
        raise ForeignTablesMissing(source.name, missing)


def _plain_app() -> Holdfast:
    from holdfast.app import Holdfast

    settings = current()
    return Holdfast(settings.location(), prefix=settings.prefix, schema=settings.schema)


def _name(said: str) -> str:
    kind, _, rest = said.partition(":")
    if kind not in SETTINGS:
        raise Failure(f"--store is pdo:TABLE or durable:PREFIX, not {said!r}", Exit.USAGE, did_you_mean(kind, SETTINGS))
    return f"{kind}:{rest or DEFAULTS[kind]}"


def _known(app: Holdfast, said: str) -> PdoQueue | DurableSteps:
    """Find a store of an application, which knows its settings."""
    name, _, query = said.partition("?")
    name, named = _name(name), {source.name: source for source in app.foreign.sources}
    if query:
        raise Failure(f"{name} has its settings from the application", Exit.USAGE, f"leave out ?{query}")
    if name in named:
        return named[name]
    stores = f"it has {', '.join(sorted(named))}" if named else "it has none"
    hint = did_you_mean(name, named) or f"{stores}; with --url instead of --app, any table can be named"
    raise Failure(f"the application has no store {name}", Exit.USAGE, hint)


def _made(app: Holdfast, said: str) -> PdoQueue | DurableSteps:
    name, _, query = said.partition("?")
    kind, _, table = _name(name).partition(":")
    settings = _settings(kind, query)
    if kind == "pdo":
        return app.foreign.pdo(table, **settings)
    prefix, _, partition = table.partition("@")
    return app.foreign.durable(prefix, partition or None, **settings)


def _settings(kind: str, query: str) -> dict[str, Any]:
    known, settings = SETTINGS[kind], {}
    for word, value in parse_qsl(query, keep_blank_values=True):
        if word not in known:
            raise Failure(f"--store {kind}:… takes no {word!r}", Exit.USAGE, f"it takes {', '.join(known)}")
        try:
            settings[word] = known[word](value)
        except ValueError as error:
            raise Failure(f"--store: {word} must be a number; got {value!r}", Exit.USAGE) from error
    return settings


def sources() -> Sequence[PdoQueue | DurableSteps]:
    """List the shared tables of the application at hand; without one, nobody knows of any."""
    app = current().application()
    return [] if app is None else app.foreign.sources


# jobs


def list_rows(limit: int, after: str | None, oldest: bool, wanted: Wanted) -> tuple[list[JobView], str]:
    """Read waiting and leased rows, and the store's name."""
    if finished := [state for state in wanted.states if state not in ("pending", "leased")]:
        name = current().foreign
        raise Failure(
            f"--state {finished[0]}: {name} keeps only what waits and runs",
            Exit.USAGE,
            f"`holdfast dead list --store {name}` lists dead letters",
        )
    with open_source() as shared:
        found = shared.found(views.list_rows, wanted, after, not oldest)
        return list(islice(found, limit)), shared.name


def show_row(row_id: str, dead: bool) -> tuple[JobView, str]:
    with open_source() as shared:
        if dead:
            _ = shared.letters
        return shared.one(views.list_failed if dead else views.list_rows, row_id), shared.name


def refuse_cancel() -> None:
    """Say why there is no cancel, and what to do instead."""
    with open_source() as shared:
        if isinstance(shared.source.tables, PdoTables):
            table = shared.source.tables.queries.tables[0]
            raise Conflict(
                f"{shared.name} knows no cancel: the programs that share it would not hear of it. To be rid of a "
                f"message that waits (reserved_at is null), delete its row in {table}."
            )
        raise Conflict(f"{shared.name} knows no cancel: the step belongs to a run. Cancel the run in its engine.")


def refuse_actor(actor: str | None) -> None:
    """Refuse to promise an audit line that nobody would write."""
    if actor:
        raise Failure(f"--actor: {current().foreign} keeps no audit", Exit.USAGE, "leave it out")


class Follower:
    """Remembers in which state each row was seen last; one that left the table is told as gone."""

    def __init__(self, wanted: Wanted, window: int) -> None:
        self._wanted = wanted
        self._window = window
        self._seen: dict[str, JobView] = {}

    def look(self, shared: Shared) -> list[tuple[JobView, str]]:
        """Read what changed since the last look, oldest first: rows, and what they are now."""
        rows = list(islice(shared.found(views.list_rows, self._wanted, newest=True), self._window))
        now = {row.id: row for row in reversed(rows)}
        # Beyond the window nothing is known: what fell out of it may still be there.
        edge = rows[-1].created_at if len(rows) == self._window else None
        gone = [row for row in self._seen.values() if row.id not in now and (edge is None or row.created_at > edge)]
        changed = [row for row in now.values() if _state(self._seen.get(row.id)) != _state(row)]
        self._seen = now
        return [*((row, "gone") for row in gone), *((row, row.state) for row in changed)]


def _state(row: JobView | None) -> tuple[Any, ...] | None:
    return None if row is None else (row.state, row.attempts, row.leased_at if row.state == "leased" else None)


def follow(wanted: Wanted, window: int, looks: Iterator[None]) -> Iterator[tuple[list[tuple[JobView, str]], str]]:
    """Yield what changed at each look, and the store's name."""
    with open_source() as shared:
        follower = Follower(wanted, window)
        for _ in looks:
            yield follower.look(shared), shared.name


# dead letters


def list_letters(limit: int, after: str | None, wanted: Wanted) -> tuple[list[JobView], str]:
    with open_source() as shared:
        _note_none(shared)
        return list(islice(shared.found(views.list_failed, wanted, after, True), limit)), shared.name


def _note_none(shared: Shared) -> None:
    """A list of nothing is no error, but a person wants to know why it is one."""
    if not isinstance(shared.source.tables, PdoTables):
        print_notes([f"{shared.name} keeps no dead letters: failed steps are its engine's, with their runs"])


def groups(letters: Iterable[JobView], limit: int) -> list[DeadGroup]:
    """Group dead letters by kind and like errors, the largest group first; `letters` come newest first."""
    found: dict[tuple[str | None, str], DeadGroup] = {}
    for letter in letters:
        name, at, error = (letter.group, letter.kind), letter.finished_at or letter.created_at, letter.last_error or {}
        words = str(error.get("type")), str(error.get("message"))
        group = found.get(name) or DeadGroup(letter.group or "", letter.kind, 0, [], *words, at, at, letter.id)
        queues = sorted({*group.queues, letter.queue})
        first, last = min(group.first_at, at), max(group.last_at, at)
        found[name] = replace(group, count=group.count + 1, queues=queues, first_at=first, last_at=last)
    return sorted(found.values(), key=lambda group: (-group.count, group.kind, group.group))[:limit]


def list_groups(limit: int, wanted: Wanted) -> tuple[list[DeadGroup], str]:
    with open_source() as shared:
        _note_none(shared)
        return groups(shared.found(views.list_failed, wanted, None, True), limit), shared.name


def replay_letters(wanted: Wanted, limit: int | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Send dead letters back to their queues, the oldest first."""
    with open_source() as shared:
        tables, meant = shared.letters, _meant(shared, wanted, limit)
        if not dry_run and len(meant) > 1:
            confirm(f"Replay {plural(len(meant), 'dead letter')} of {shared.name}?", yes)
        done = Replays()
        for chunk in [] if dry_run else _chunks(meant):
            answer = shared.store.run(pdo_dead.replay_many(tables, chunk))
            done.rows.update(answer.rows)
            done.conflicts.update(answer.conflicts)
    ids = meant if dry_run else list(done.rows)
    if as_json:
        told: dict[str, Any] = {"store": shared.name, "dry_run": dry_run, "replayed": list(map(str, ids))}
        print_json([told | {"rows": list(map(str, done.rows.values())), "conflicts": done.conflicts}])
    else:
        click.echo(f"{'would replay' if dry_run else 'replayed'} {plural(len(ids), 'dead letter')}")
        for why in done.conflicts.values():
            click.echo(why, err=True)
    if done.conflicts and not done.rows:
        raise click.exceptions.Exit(Exit.CONFLICT)


def discard_letters(wanted: Wanted, limit: int | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good, the oldest first."""
    with open_source() as shared:
        tables, gone = shared.letters, _meant(shared, wanted, limit)
        if not dry_run:
            confirm(f"Delete {plural(len(gone), 'dead letter')} of {shared.name} for good?", yes)
            gone = [
                row_id for chunk in _chunks(gone) for row_id in shared.store.run(pdo_dead.discard_many(tables, chunk))
            ]
    if as_json:
        print_json([{"store": shared.name, "dry_run": dry_run, "discarded": list(map(str, gone))}])
    else:
        click.echo(f"{'would discard' if dry_run else 'discarded'} {plural(len(gone), 'dead letter')}")


def _meant(shared: Shared, wanted: Wanted, limit: int | None) -> list[int]:
    """Read the ids that are meant: what dies again meanwhile gets another, and is not meant."""
    ids = [int(letter.id) for letter in islice(shared.found(views.list_failed, wanted), limit)]
    if not ids:
        hint = f"`holdfast dead list --store {shared.name}` shows what there is"
        raise Failure("no dead letter matches", Exit.NOT_FOUND, hint)
    return ids


def _chunks(ids: list[int]) -> list[list[int]]:
    return [ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK)]


# What our own lists say of the others


def rows_told(store: Store) -> list[str]:
    """Say what the application's shared tables hold: their rows are in no list of ours."""
    names = ("ready", "waiting", "leased", "stale", "unread")
    told = [(source.name, _counted(store, source, names)) for source in sources()]
    return [f"{name}: {words or 'empty'}; --store {name} lists it" for name, words in told]


def letters_told(store: Store) -> list[str]:
    """Say which of the application's shared tables hold dead letters."""
    told = [(source.name, _counted(store, source, ("dead",))) for source in sources()]
    return [f"{name}: {words}; --store {name} lists them" for name, words in told if words]


def _counted(store: Store, source: Shown, names: Sequence[str]) -> str:
    if absent := store.run(views.missing(source)):
        return f"there is no table {' and no '.join(absent)}"
    counts = store.run(views.overview(source))
    sums = {name: sum(getattr(count, name) for count in counts) for name in names}
    return ", ".join(f"{number:,} {name}" for name, number in sums.items() if number)
