"""`holdfast sql`: the SQL that runs, as the catalogue fills it in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.render import Column, print_json, print_table
from holdfast.cli.shared import Exit, Failure, connection_options, current, did_you_mean, json_option
from holdfast.flow import Surface
from holdfast.store.catalogue import Query, compile_statement, foreign_rooms, own_rooms, with_now, written_in
from holdfast.store.dialects import DIALECTS, dialect_named
from holdfast.values.options import StoreOptions

if TYPE_CHECKING:
    from holdfast.store.dialects import Dialect

NONE = "none"
NOTHING_NAMED = "no query was named"
NO_DATABASE = f"say for which one: --dialect {', --dialect '.join(DIALECTS[:-1])} or --dialect {DIALECTS[-1]}"


@click.command(short_help="Print the SQL of a query.")
@click.argument("name", required=False)
@click.option("--dialect", "named", type=click.Choice(DIALECTS), help="For this database, without connecting to one.")
@click.option("--list", "listing", is_flag=True, help="List the queries, with what each one does.")
@click.option(
    "--given",
    metavar="PARAMETER",
    multiple=True,
    help="Choose the optional lines of this parameter; may be repeated. `none` leaves all of them out.",
)
@connection_options
@json_option
def sql(name: str | None, named: str | None, listing: bool, given: tuple[str, ...], as_json: bool) -> None:
    """Print a query as it runs, with its comments: to read it, to explain it in a console, to find it in a log.

    Lines that end in `-- when PARAMETER` are sent only if that parameter is given. All of them are shown unless --given
    chooses. Nothing is read from a database; --url or --app only say which kind it is. Without one, --list lists the
    queries of all of them.

    \b
    Example:
      holdfast sql --list --dialect postgres
      holdfast sql claim --dialect postgres --given queues
      holdfast sql foreign/pdo/lock --dialect mysql
    """
    if listing:
        of_all = named is None and not current().names_a_database
        _list([_named(each) for each in DIALECTS] if of_all else [_dialect(named)], as_json)
        return
    if name is None:
        raise Failure(NOTHING_NAMED, Exit.USAGE, "`holdfast sql --list` lists them")
    dialect = _dialect(named)
    query = _query(dialect, name)
    parts = _parts(dialect, query, given)
    if as_json:
        print_json([_told(dialect, name, query, parts)])
        return
    optional = f"\n-- Optional lines: {', '.join(sorted(query.optional))}." if query.optional else ""
    click.echo(f"{query.head}{optional}\n" + "\n".join(f"{part};" for part in parts))


def _dialect(named: str | None) -> Dialect:
    if named:
        return _named(named)
    if not current().names_a_database:
        raise Failure("no kind of database was named", Exit.USAGE, NO_DATABASE)
    store = current().store()
    store.close()
    return store.dialect


def _named(name: str) -> Dialect:
    return dialect_named(name, StoreOptions.of(prefix=current().prefix, schema=current().schema))


def _rooms(dialect: Dialect) -> Iterator[tuple[str, str, str]]:
    """List (room, name as it is typed, what it does) of every query of a database."""
    for room in (*own_rooms(), *foreign_rooms(dialect.name)):
        for written in written_in(room, dialect.name).values():
            typed = f"{room}/{written.name}" if "/" in room else written.name
            yield room, typed, written.head.partition("\n")[0].partition(": ")[2]


def _list(dialects: Iterable[Dialect], as_json: bool) -> None:
    # A query that several databases have is told once, in the words of the first.
    listed: dict[str, tuple[str, str]] = {}
    for dialect in dialects:
        for room, name, about in _rooms(dialect):
            listed.setdefault(name, (room, about))
    if as_json:
        print_json({"name": name, "room": room, "about": about} for name, (room, about) in listed.items())
        return
    print_table((Column("name", whole=True), Column("about")), [(name, about) for name, (_, about) in listed.items()])


def _query(dialect: Dialect, typed: str) -> Query:
    known = {name: room for room, name, _ in _rooms(dialect)}
    if typed not in known:
        hint = did_you_mean(typed, known) or "`holdfast sql --list` lists them"
        raise Failure(f"there is no query {typed!r} on {dialect.name}", Exit.NOT_FOUND, hint)
    room, name = known[typed], typed.rpartition("/")[2]
    # What the tables are called is said by the application: the placeholders stay.
    return dialect.catalogue(Surface(room, room, ()))[name] if "/" in room else dialect.queries[name]


def _parts(dialect: Dialect, query: Query, given: tuple[str, ...]) -> list[str]:
    if not given:
        return [with_now(part, dialect.own_now) for part in query.parts]
    if strange := sorted(set(given) - query.optional - {NONE}):
        known = f"it may be {', '.join(sorted(query.optional))}" if query.optional else "it has no optional lines"
        raise Failure(f"{query.name} does not ask for {strange[0]!r}", Exit.USAGE, known)
    return query.chosen(frozenset(given))


def _told(dialect: Dialect, name: str, query: Query, parts: list[str]) -> dict[str, Any]:
    names = dict.fromkeys(one for part in parts for one in compile_statement(part, "named").names)
    return {
        "name": name,
        "dialect": dialect.name,
        "comments": query.head.splitlines(),
        "optional": sorted(query.optional),
        "parameters": list(names),
        "statements": parts,
    }
