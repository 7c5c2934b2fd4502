"""Which desk a command works at: our own jobs, or what --store names (`pdo:jobs`, `durable:durable`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from holdfast.admin import JobsDesk
from holdfast.cli.schemas import ForeignSchema, OurSchema, Schema
from holdfast.cli.shared import Exit, Failure, actor_name, current, did_you_mean, missing_file
from holdfast.errors import DatabaseUnavailable
from holdfast.life.desk import Desk
from holdfast.life.listing import After, Page, Wanted
from holdfast.values.views import JobView

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.flow import Flow
    from holdfast.foreign import DurableSteps, PdoQueue
    from holdfast.store import Store

T = TypeVar("T")
Read = Callable[..., "Flow[Page]"]
# tables: raise unless they can be used. database: raise unless it answers. nothing: the command looks by itself.
Needs = Literal["tables", "database", "nothing"]

# What --store may say after a question mark, where no application does, and how it is read.
SETTINGS: dict[str, dict[str, Callable[[str], Any]]] = {
    "pdo": {"failed_table": str, "timezone": str, "retry_after": int},
    "durable": {"lease": float},
}
DEFAULTS = {"pdo": "jobs", "durable": "durable"}


class Opened:
    """A desk with the store that its tables are in, and how the command line speaks of it.

    `others` are further desks of the same application, each with its store, whose rows are in no list of this one.
    """

    def __init__(self, desk: Desk, store: Store, schema: Schema, name: str = "", others: Sequence[Opened] = ()) -> None:
        self.desk = desk
        self.store = store
        self.schema = schema
        self.others = others
        # Whether --store named it: then a command looks at these tables and at nothing else.
        self.is_named = bool(name)
        # Beside each row in JSON, at the end of commands in hints, and behind what is asked about.
        self.label = {"store": name} if name else {}
        self.option = f" --store {name}" if name else ""
        self.of = f" of {name}" if name else ""

    def run(self, work: Flow[T]) -> T:
        return self.store.run(work)

    def look(self, work: Flow[T]) -> T:
        """Look at what is told beside other things: once, because a person waits, and without making a file.

        Raises: DatabaseUnavailable.
        """
        if absent := missing_file(self.store):
            raise DatabaseUnavailable(f"there is no database file {absent}")
        return self.store.run_once(work)

    def found(self, read: Read, wanted: Wanted, limit: int, after: After = None, newest: bool = True) -> list[JobView]:
        """Read up to `limit` rows, in as many pages as the desk makes of them."""
        rows: list[JobView] = []
        while len(rows) < limit:
            page = self.run(read(wanted, limit=limit - len(rows), after=after, newest=newest))
            rows += page.rows
            if page.more is None:
                break
            after = page.more
        return rows

    def actor(self, said: str | None) -> str:
        """Name who acts; who asks for an audit line must hear where none would be written."""
        if said and not self.run(self.desk.is_audited()):
            why = f"--actor: {self.desk.name} keeps no audit here, because the database has no Holdfast tables"
            raise Failure(why, Exit.USAGE, "leave it out, or run `holdfast migrate apply`")
        return actor_name(said)


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
    return Opened(JobsDesk(), store, OurSchema(store), others=others)


def _named(said: str) -> Opened:
    app = current().application()
    if app is not None:
        source = _known(app, said)
    else:
        app = _plain_app()
        source = _made(app, said)
    current().in_use = source.store.url
    return _beside(source)


def _beside(source: PdoQueue | DurableSteps) -> Opened:
    return Opened(source.desk, source.store, ForeignSchema(source, source.store), source.name)


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
