"""Which desk a command works at: our own jobs, or what --store names (`holdfast.foreign.kinds` lists what it may)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl

import click

from holdfast.admin import JobsDesk, shard_of
from holdfast.cli.looking import only_one
from holdfast.cli.schemas import ForeignSchema, OurSchema, Schema, ShardedSchema
from holdfast.cli.sharding import said_of
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    connection_options,
    current,
    did_you_mean,
    json_option,
    keep,
    missing_file,
    open_store,
    together,
)
from holdfast.errors import DatabaseUnavailable
from holdfast.flow import Series, run_series
from holdfast.life.desk import Desk
from holdfast.life.listing import After, Page, Wanted
from holdfast.store import Shards
from holdfast.values.views import JobView

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.flow import Flow
    from holdfast.foreign import ForeignSource
    from holdfast.remote import Transport
    from holdfast.store import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Read = Callable[..., "Flow[Page]"]
# tables: raise unless they can be used. database: raise unless it answers. nothing: the command looks by itself.
Needs = Literal["tables", "database", "nothing"]


class _StoreOption(click.Option):
    """--store. What it may name is looked up for its help alone: the other commands are spared the imports."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from holdfast.foreign.kinds import forms

        self.help = f"Foreign tables, shared with other languages: {forms()}."
        return super().get_help_record(ctx)


def store_option(command: F) -> F:
    """Add --store: work on foreign tables instead of our own jobs."""
    return click.option("--store", "named", cls=_StoreOption, expose_value=False, callback=_keep_store)(command)


def acting_options(every: str) -> Callable[[F], F]:
    """Add what commands share that act on many rows: how many, whether to ask, who does it, and where."""
    return together(
        click.option("--all", "everything", is_flag=True, help=f"Mean every {every}."),
        click.option("--limit", type=click.IntRange(1), help="At most this many, the oldest first.  [default: all]"),
        click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        actor_option,
        store_option,
        connection_options,
        json_option,
    )


def _keep_store(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not value.strip():
        # An empty variable in a script must not turn the command to our own tables.
        raise click.BadParameter("is empty; leave it out for Holdfast's own tables", ctx, param)
    keep(ctx, param, value)


class Opened:
    """A desk with the store that its tables are in, and how the command line speaks of it.

    `others` are further desks of the same application, each with its store, whose rows are in no list of this one.
    """

    def __init__(self, desk: Desk, store: Store, schema: Schema, name: str = "", others: Sequence[Opened] = ()) -> None:
        self.desk = desk
        self.store = store
        self.schema = schema
        self.others = others
        # What `doctor` looks at: the whole database with the foreign tables of the application, or what --store named.
        self.is_whole = not name
        self.foreign: Sequence[Opened] = others if self.is_whole else (self,)
        # Beside each row in JSON, at the end of commands in hints, and behind what is asked about.
        self.label = {"store": name} if name else {}
        self.option = f" --store {name}" if name else ""
        self.of = f" of {name}" if name else ""

    def run(self, work: Flow[T]) -> T:
        return self.store.run(work)

    def run_all(self, series: Series[T]) -> T:
        """Run flows one after the other, each in a transaction of its own."""
        return run_series(series, self.run)

    def look(self, work: Flow[T]) -> T:
        """Look at what is told beside other things: once, because a person waits, and without making a file.

        Raises: DatabaseUnavailable.
        """
        if absent := missing_file(self.store):
            raise DatabaseUnavailable(f"there is no database file {absent}")
        return self.store.run_once(work)

    def shard_of(self, job: JobView) -> dict[str, int]:
        """Name the shard of one of our jobs; nothing where there are none."""
        number = self.run(shard_of(job.id)) if isinstance(self.store, Shards) else None
        return {} if number is None else {"shard": number}

    def found(self, read: Read, wanted: Wanted, limit: int, after: After = None, newest: bool = True) -> list[JobView]:
        """Read up to `limit` rows, in as many pages as the desk makes of them."""
        return self.looked(read, wanted, limit, after, newest, far=True)[0]

    def looked(
        self, read: Read, wanted: Wanted, limit: int, after: After, newest: bool, far: bool
    ) -> tuple[list[JobView], str | None]:
        """Read up to `limit` rows; unless they are looked for `far`, the first horizon is the end, and its id is told.

        Far is in as many looks as it takes, each at a bounded number of rows.
        """
        rows: list[JobView] = []
        wanted = self.whole(wanted)
        while len(rows) < limit:
            page = self.run(read(wanted, limit=limit - len(rows), after=after, newest=newest))
            rows += page.rows
            if page.more is None:
                break
            if page.at_horizon and not far:
                return rows, page.cursor
            after = page.more
        return rows, None

    def whole_id(self, said: str) -> str:
        """Find the id that begins with what was typed. Raises: Failure where several do."""
        reading = self.desk.ids_like(said)
        return said if reading is None else only_one(said, self.run(reading))

    def whole(self, wanted: Wanted) -> Wanted:
        """Find the ids that a filter names by their beginnings."""
        return replace(wanted, ids=tuple(map(self.whole_id, wanted.ids))) if wanted.ids else wanted

    def actor(self, said: str | None) -> str:
        """Name who acts; who asks for an audit line must hear where none would be written."""
        if said and not self.run(self.desk.is_audited()):
            why = f"--actor: {self.desk.name} keeps no audit here, because the database has no Holdfast tables"
            raise Failure(why, Exit.USAGE, "leave it out, or run `holdfast migrate apply`")
        return actor_name(said)


@contextmanager
def open_shards() -> Iterator[Shards]:
    """Open the shards that the options name. Raises: Failure where it is one database."""
    with open_store(tables=False) as store:
        if not isinstance(store, Shards):
            hint = "give --app of an application with shards=, or --shards"
            raise Failure("there are no shards: it is one database", Exit.USAGE, hint)
        yield store


def part_of(opened: Opened, store: Store) -> Opened:
    """Look at one shard as if it was all; the foreign tables of the application stay beside it."""
    return Opened(opened.desk, store, OurSchema(store), others=opened.others)


@contextmanager
def open_desk(needs: Needs = "tables") -> Iterator[Opened]:
    """Open the desk that the options name, and close its store afterwards."""
    opened = _named(current().named or "") if current().named else _ours()
    try:
        if needs == "tables":
            opened.schema.require()
        elif needs == "database":
            opened.schema.require_database()
        yield opened
    finally:
        for each in (opened, *opened.others):
            each.store.close()


def _ours() -> Opened:
    app = current().application()
    store = current().store() if app is None else app.store
    others = [] if app is None else [_beside(source) for source in app.foreign.sources]
    schema = ShardedSchema(store) if isinstance(store, Shards) else OurSchema(store)
    return Opened(JobsDesk(), store, schema, others=others)


def _named(said: str) -> Opened:
    app = current().application()
    if app is not None:
        source = _known(app, said)
    else:
        app = plain_app()
        source = _made(app, said)
    current().in_use = source.store.url
    return _beside(source)


def _beside(source: ForeignSource) -> Opened:
    return Opened(source.desk, source.store, ForeignSchema(source, source.store), source.name)


def plain_app() -> Holdfast:
    """Make an application that has nothing but its database, where none is named."""
    from holdfast.app import Holdfast

    settings = current()
    shards = None if settings.shards is None else said_of(settings.shards)
    return Holdfast(settings.location(), prefix=settings.prefix, schema=settings.schema, shards=shards)


def _name(said: str) -> str:
    from holdfast.foreign.kinds import KINDS, forms

    kind, _, rest = said.partition(":")
    if kind not in KINDS:
        raise Failure(f"--store is {forms()}, not {said!r}", Exit.USAGE, did_you_mean(kind, KINDS))
    return f"{kind}:{rest or KINDS[kind].default}"


def _known(app: Holdfast, said: str) -> ForeignSource:
    """Find foreign tables of an application, which knows their settings."""
    name, _, query = said.partition("?")
    name, known = _name(name), {source.name: source for source in app.foreign.sources}
    if query:
        raise Failure(f"{name} has its settings from the application", Exit.USAGE, f"leave out ?{query}")
    if name in known:
        return known[name]
    stores = f"it has {', '.join(sorted(known))}" if known else "it has none"
    hint = did_you_mean(name, known) or f"{stores}; with --url instead of --app, any table can be named"
    raise Failure(f"the application has no store {name}", Exit.USAGE, hint)


def _made(app: Holdfast, said: str) -> ForeignSource:
    """Make foreign tables of which only the command line says how they are set up."""
    from holdfast.foreign.kinds import KINDS

    name, _, query = said.partition("?")
    kind, _, rest = _name(name).partition(":")
    return KINDS[kind].open(app.foreign, rest, **_settings(kind, KINDS[kind].settings, query))


def _settings(kind: str, known: Mapping[str, Callable[[str], Any]], query: str) -> dict[str, Any]:
    settings = {}
    for word, value in parse_qsl(query, keep_blank_values=True):
        if word not in known:
            raise Failure(f"--store {kind}:… takes no {word!r}", Exit.USAGE, f"it takes {', '.join(known)}")
        try:
            settings[word] = known[word](value)
        except ValueError as error:
            raise Failure(f"--store: {word} must be a number; got {value!r}", Exit.USAGE) from error
    return settings


def transport_named(store: Store, engine: str) -> Transport:
    """Find the tables of an engine of remote steps that is called by their prefix. Raises: ConfigError."""
    from holdfast.foreign.kinds import transport_of

    return transport_of(store, engine)
