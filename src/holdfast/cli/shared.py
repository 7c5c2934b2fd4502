"""What every command shares: exit codes, how errors are told, the database options, and how APP is found."""

from __future__ import annotations

import getpass
import importlib
import os
import pkgutil
import re
import shlex
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import click

from holdfast import errors
from holdfast.cli.exits import EXITS
from holdfast.cli.exits import Exit as Exit
from holdfast.errors import HoldfastError
from holdfast.values.urls import MASK, read, redact, shown
from holdfast.values.words import without_application

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.outbox import Route
    from holdfast.store import Store

F = TypeVar("F", bound=Callable[..., Any])

# Log lines are written on threads without a context, so what must not be shown is kept here.
_urls_in_use: set[str] = set()


class Failure(click.ClickException):
    """The end of a command that did not do what was asked: one line, a hint, an exit code."""

    def __init__(self, message: str, code: Exit, hint: str = "", trace: str = "") -> None:
        super().__init__(hidden(typed(message)))
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance
        self.hint = hidden(typed(hint))
        self.trace = hidden(trace)

    def show(self, file: IO[Any] | None = None) -> None:
        lines = [self.trace.rstrip(), f"error: {self.message}", f"hint: {self.hint}" if self.hint else ""]
        for line in filter(None, lines):
            click.echo(line, file=file, err=True)


def hidden(text: str) -> str:
    """Take every password out of a text: by its place in a URL, and the one in use wherever it stands."""
    text = "\n".join(redact(line) for line in text.split("\n"))
    for url in {*_urls_in_use, os.environ.get("HOLDFAST_URL", ""), *os.environ.get("HOLDFAST_SHARDS", "").split()}:
        for password in _passwords(url):
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", MASK, text)
    return text


def _passwords(url: str) -> list[str]:
    found = read(url)
    known = set() if isinstance(found, str) else {found.password or "", *found.secrets()}
    words = known | {quote(word, safe="") for word in known}
    with suppress(ValueError):
        # As it is written, and of URLs that cannot be read, too.
        written = urlsplit(url).password or ""
        words |= {written, unquote(written)}
    # Blanking out a word of one or two letters would spoil the text and give the password away by its gaps.
    return [word for word in words if len(word) > 2]


def failure_of(error: Exception) -> Failure:
    """Describe any exception: Holdfast's own in its words, others by type, with the traceback only under -v."""
    trace = "".join(traceback.format_exception(error)) if current().verbose else ""
    if isinstance(error, HoldfastError):
        code = next((code for kind, code in EXITS if isinstance(error, kind)), Exit.UNEXPECTED)
        return Failure(_one_line(str(error)), code, _hint(error), trace)
    hint = "" if trace else "run it again with -v for the traceback"
    return Failure(f"{type(error).__name__}: {_one_line(str(error))}", Exit.UNEXPECTED, hint, trace)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _hint(error: HoldfastError) -> str:
    url = current().in_use or current().url or os.environ.get("HOLDFAST_URL", "")
    if isinstance(error, errors.DatabaseUnavailable | errors.SchemaMissing) and url and not current().has_shards:
        return f"the database in use is {shown(url)}"
    return ""


@dataclass
class Settings:
    """Which database a command works on, as far as the command line says."""

    url: str | None = None
    app: str | None = None
    prefix: str | None = None
    schema: str | None = None
    # A number of schemas, or URLs with space between them.
    shards: str | None = None
    verbose: bool = False
    # How the command line was called, where a framework's own is around it and says which application.
    program: str | None = None
    # What makes the tables there, where that is a command of the framework's.
    migrate: str | None = None
    # What --store names, when it is not our own jobs.
    named: str | None = None
    # Modules to import beside the application: they register handlers.
    imports: tuple[str, ...] = ()
    # The application that was imported last: its URL has become that of the command.
    loaded: str | None = None
    # Whether it has shards: no URL of one names all of them. And whether it says itself where its database is.
    sharded: bool = False
    own_url: bool = False
    # Where the tables are that --store names: the application may have them in another database than its own.
    in_use: str | None = None

    def export(self) -> None:
        """Hand the options to the application's own Holdfast through the environment, before it is imported."""
        for name in ("url", "prefix", "schema", "shards"):
            if value := getattr(self, name):
                os.environ[f"HOLDFAST_{name.upper()}"] = value

    def store(self) -> Store:
        """Make the store: from --app, from --url, from HOLDFAST_URL, from HOLDFAST_APP, whichever is said first."""
        app = self.application()
        if app is not None:
            return app.store
        from holdfast.cli.sharding import opened
        from holdfast.values.options import StoreOptions

        return opened(self.location(), self.shards, StoreOptions.of(prefix=self.prefix, schema=self.schema))

    @property
    def names_a_database(self) -> bool:
        """Tell whether anything says which database it is."""
        return bool(self._url() or self.app or os.environ.get("HOLDFAST_APP"))

    @property
    def has_shards(self) -> bool:
        """Tell whether the options or the environment speak of shards."""
        return bool(self.sharded or self.shards or os.environ.get("HOLDFAST_SHARDS", "").strip())

    def _url(self) -> str | None:
        """Read where the database is, or the first of its shards: what the options say comes first."""
        said = (self.url, self.shards, os.environ.get("HOLDFAST_URL"), os.environ.get("HOLDFAST_SHARDS"))
        words = (word for one in said for word in (one or "").split()[:1])
        return next((word for word in words if not word.isdigit()), None)

    def application(self) -> Holdfast | None:
        """Load the application that is named, if one is."""
        return load_app(self.app_name) if self.app_name else None

    @property
    def app_name(self) -> str | None:
        """Which application is named, by --app, or by HOLDFAST_APP where no URL is."""
        return self.app or self.loaded or (None if self._url() else os.environ.get("HOLDFAST_APP"))

    def location(self) -> str:
        """Read where the database is, when no application says so."""
        if url := self._url():
            return url
        raise Failure(
            "no database was named",
            Exit.USAGE,
            "give --url sqlite:///shop.db (or postgresql://…, mysql://…), --app module:attribute, or set HOLDFAST_URL",
        )


def current() -> Settings:
    """The settings of the running command."""
    ctx = click.get_current_context(silent=True)
    return ctx.ensure_object(Settings) if ctx else Settings()


# Commands that need no database.
_WITHOUT = ("sql", "demo", "init", "bench")


def typed(text: str) -> str:
    """Write the commands in a text as they can be typed here: with the database that this command was told of.

    One that the environment names is left out, because it names it for them, too.
    """
    written = _in_framework if current().program else _with_database
    return re.sub(r"`holdfast ([^`]+)`", lambda found: f"`{written(found[1])}`", text)


def _in_framework(command: str) -> str:
    settings = current()
    command = without_application(command)
    if command == "migrate apply" and settings.migrate:
        return settings.migrate
    return f"{settings.program} {command}"


def _with_database(command: str) -> str:
    settings, by_environment = current(), os.environ.get("HOLDFAST_APP")
    app = settings.app or (settings.loaded if settings.loaded != by_environment else None)
    name = app or by_environment
    option = " --app module:attribute" if command.endswith(" --app module:attribute") else ""
    command = f"holdfast {command.removesuffix(option)}"
    if re.search(r"\bAPP\b", command):
        return re.sub(r"\bAPP\b", name or "APP", command)
    words = command.split()
    if words[1] in _WITHOUT or {"--app", "--url", name} & set(words):
        return command
    if not app and any(os.environ.get(f"HOLDFAST_{name}") for name in ("URL", "SHARDS", "APP")):
        return command
    named = {name: getattr(settings, name) or "" for name in ("url", "shards")}
    if settings.own_url:
        named["url"] = ""
    # One with a password cannot be shown, so it is left to be typed again.
    said = {name: value for name, value in named.items() if all(shown(word) == word for word in value.split())}
    said = {"app": app or ""} | said | {"prefix": settings.prefix or "", "schema": settings.schema or ""}
    given = "".join(f" --{name} {shlex.quote(value)}" for name, value in said.items() if value)
    return command + (given or option)


def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Take an option's value into the settings of the command."""
    # The same options stand before and after the command's name; the later ones win, unsaid ones change nothing.
    if value and param.name:
        settings = ctx.ensure_object(Settings)
        setattr(settings, param.name, settings.imports + value if param.name == "imports" else value)
        if param.name in ("url", "shards"):
            _urls_in_use.update(value.split())


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Make one decorator of several options, in the order in which `--help` lists them."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def connection_options(command: F) -> F:
    """Add the options that name the database; every command takes them, and so does `holdfast` itself."""
    return together(
        click.option(
            "--url",
            expose_value=False,
            callback=keep,
            help="The database: sqlite:///shop.db, postgresql://…, mysql://…",
        ),
        click.option(
            "--shards",
            expose_value=False,
            callback=keep,
            help="Its shards: a number of schemas, or URLs in one text.",
        ),
        click.option(
            "--app", expose_value=False, callback=keep, help="The application, module:attribute; its database."
        ),
        click.option(
            "--import",
            "imports",
            multiple=True,
            expose_value=False,
            callback=keep,
            help="Import this module, too, for its handlers; repeatable.",
        ),
        click.option(
            "--prefix",
            expose_value=False,
            callback=keep,
            help="What the table names begin with.  [default: holdfast]",
        ),
        click.option(
            "--schema",
            expose_value=False,
            callback=keep,
            help="The tables' PostgreSQL schema.  [default: the connection's]",
        ),
        click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=keep, help="Show tracebacks."),
    )(command)


def json_option(command: F) -> F:
    """Add --json: one JSON object per line."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")(command)


def actor_option(command: F) -> F:
    """Add --actor: who the audit lines name."""
    return click.option("--actor", help="Who does this, for the audit line.  [default: $USER@host]")(command)


def actor_name(said: str | None) -> str:
    """Name who is at the keyboard."""
    if said:
        return said
    try:
        user = os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@contextmanager
def open_store(*, tables: bool = True) -> Iterator[Store]:
    """Open the store that the options name and close it afterwards; `tables` makes sure that it can be used."""
    store = current().store()
    try:
        if tables:
            require_tables(store)
        yield store
    finally:
        store.close()


def require_tables(store: Store) -> None:
    """Raise unless the database answers and has the tables of this version; of shards, one must answer at least.

    Asks once: a person waits, and sees at once that the database is down.
    """
    from holdfast.cli.sharding import tell_of, trouble_of
    from holdfast.store import Shards, migrate, shard_map

    if isinstance(store, Shards):
        tell_of(store, lambda line: click.echo(hidden(typed(line)), err=True))
        if all(map(missing_file, store.stores)):
            require_file(store.stores[0], "shard 0: ")
        if trouble := trouble_of(store, lambda line: click.echo(line, err=True)):
            raise Failure(trouble[0], Exit.SCHEMA, trouble[1])
        return
    require_file(store)
    store.run_once(migrate.check(store.schema_version))
    if (stored := store.run_once(shard_map.read())) is not None and (why := stored.not_alone):
        click.echo(f"note: {why} or --shards", err=True)


def require_file(store: Store, name: str = "") -> None:
    """Raise where the file of a store is not there; `name` says which shard it is."""
    if missing := missing_file(store):
        folder = missing.absolute().parent
        first = "" if folder.is_dir() else f"make the folder {folder}; then "
        why = f"{name}there is no database file {missing}"
        raise Failure(why, Exit.SCHEMA, f"{first}`holdfast migrate apply` creates it")


def missing_file(store: Store) -> Path | None:
    """Name the database file that is not there; to open it would create it, which only `migrate apply` should do."""
    return None if store.file is None or store.file.exists() else store.file


def load_app(name: str) -> Holdfast:
    """Import the Holdfast object that `module:attribute` names; the current directory counts as installed."""
    from holdfast.app import Holdfast

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Failure(f"APP must be module:attribute, as in shop:hf; got {name!r}", Exit.USAGE)
    settings = current()
    settings.export()
    found = _attribute(_module(module_name), attribute, name)
    if not isinstance(found, Holdfast):
        what = f"{name} is of type {type(found).__name__}, not a Holdfast object"
        raise Failure(what, Exit.USAGE, _holdfasts(sys.modules[module_name]))
    for module in settings.imports:
        _module(module)
    for option, used in (("url", found.url), ("prefix", found.options.prefix), ("schema", found.options.schema)):
        said = getattr(settings, option)
        if said and said != used:
            seen = shown(found.url) if option == "url" else used
            raise Failure(
                f"{name} sets its own {option} ({seen}), so --{option} cannot change it",
                Exit.USAGE,
                f"leave out --{option}, or let the application read HOLDFAST_{option.upper()}",
            )
    if settings.shards:
        _same_shards(name, found, settings.shards)
    settings.own_url = settings.own_url or not settings.url
    settings.url, settings.loaded, settings.sharded = found.url, name, found.shards is not None
    _urls_in_use.update(store.url for store in found.stores)
    return found


def _same_shards(name: str, found: Holdfast, typed: str) -> None:
    """Raises: Failure where an application goes by other shards than --shards says."""
    from holdfast.cli.sharding import said_of

    used: object = [store.url for store in found.stores.ours]
    if found.shards is None or said_of(typed) not in (used, len(found.stores.ours) if found.shards.one_place else used):
        why = f"{name} says itself which shards it has, so --shards cannot change them"
        raise Failure(why, Exit.USAGE, "leave out --shards, or let the application read HOLDFAST_SHARDS")


def named_app(why: str) -> Holdfast:
    """Load the application that --app or HOLDFAST_APP names. Raises: Failure where none is named."""
    name = current().app or os.environ.get("HOLDFAST_APP")
    if not name:
        raise Failure(f"which application? {why}", Exit.USAGE, "give --app module:attribute, as in --app shop:hf")
    return load_app(name)


def named_route(name: str) -> Route:
    """Find a route of the application. Raises: Failure."""
    routes = named_app("Routes are declared in its code.").context.routes
    if name not in routes.by_name:
        known = ", ".join(routes.by_name) or "none"
        hint = did_you_mean(name, routes.by_name) or f"the application has {known}"
        raise Failure(f"there is no route {name!r}", Exit.USAGE, hint)
    return routes.by_name[name]


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise Failure(f"importing {name} failed: {error}", Exit.USAGE, trace=_trace()) from error
        nearby = sorted(module.name for module in pkgutil.iter_modules([here]))
        raise Failure(
            f"there is no module {name!r} (looked in {here} and in the installed packages)",
            Exit.USAGE,
            did_you_mean(name, nearby) or "run it in the directory that holds the module",
        ) from error
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        said = _one_line(f"{type(error).__name__}: {error}")
        raise Failure(f"importing {name} failed: {said}", Exit.USAGE, "-v shows the traceback", _trace()) from error


def _trace() -> str:
    return traceback.format_exc() if current().verbose else ""


def _attribute(module: Any, dotted: str, name: str) -> Any:
    found = module
    for part in dotted.split("."):
        if not hasattr(found, part):
            where = getattr(found, "__name__", type(found).__name__)
            hint = did_you_mean(part, [word for word in dir(found) if not word.startswith("_")]) or _holdfasts(module)
            raise Failure(f"{where!r} has no attribute {part!r} (looked for {name})", Exit.USAGE, hint)
        found = getattr(found, part)
    return found


def _holdfasts(module: Any) -> str:
    from holdfast.app import Holdfast

    names = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"did you mean {' or '.join(names)}?" if names else f"{module.__name__} holds no Holdfast object"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ask for up to three names that are near to a word, or hold it; empty when there is none."""
    known = list(known)
    close = get_close_matches(word, known, n=3) or [name for name in known if word and word in name][:3]
    return f"did you mean {' or '.join(close)}?" if close else ""


@contextmanager
def in_options() -> Iterator[None]:
    """Tell of a value that breaks a rule as it was typed: by its option, and a time in seconds."""
    try:
        yield
    except errors.ConfigError as error:
        name = {"run_after": "delay"}.get(error.field, error.field)
        params = click.get_current_context().command.params
        option = next((one.opts[0] for one in params if isinstance(one, click.Option) and one.name == name), None)
        if option is None:
            raise
        said = str(error).removeprefix(error.field)
        if isinstance(error.value, timedelta):
            said = f": {error.rule}; got {error.value.total_seconds():g} seconds"
        raise Failure(_one_line(f"{option}{said}"), Exit.USAGE, trace=_trace()) from error


def interactive() -> bool:
    """Tell whether a person can answer."""
    return sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal only --yes will do."""
    if yes:
        return
    if not interactive():
        hint = "add --yes, or --dry-run to look first"
        raise Failure(f"{question} Not done: there is no terminal to ask on.", Exit.USAGE, hint)
    click.confirm(question, abort=True, err=True)
