"""The catalogue: the SQL of every surface, read from its files, kept in compiled form, and printed on demand.

A surface is a set of tables with queries of its own. Its room has a folder `sql` with a file for each database, which
hold the same query names in the same order, so that `diff` is the review tool. Holdfast's own tables are the surfaces
of the rooms directly below `holdfast`: they are found by their folders, and no name stands in two of them. Other
tables are asked for by a `Surface`, which says where the SQL is and what the tables are called.

How a file is written:

- A query starts at a comment `-- name: what it does` and may be several statements, run in order in one transaction;
  its rows are those of the last one that gives any, and the first that finds none ends it.
- Parameters are written `:name`. `:found` is the first column of the statement before, `:now` the database's time.
- A line that ends in `-- when name` belongs to the query only if the caller gives that parameter; so do the lines
  between `-- when name:` and `-- end`. A filter costs nothing where it is not used, and no SQL is made out of text.
  Some of these names no caller gives: the options of the dialect decide on them (`lines`).
- A line that ends in `-- each table` or `-- each index` stands once for each of those that the migrations make, whose
  name takes the place of `holdfast_each`.
- `-- fragment name: what it is` starts lines that several queries of the file share; `-- insert name` puts them in.
- `-- bind: rule names…` says how parameters are bound where that is not the usual way. Each dialect knows rules of its
  own: see its `binding`. `-- bind: counted` is for all of them: of a statement that gives no rows back, the number that
  it wrote is the answer, and none ends the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from holdfast.errors import ConfigError
from holdfast.flow import Surface

Style = Literal["named", "pyformat", "format", "qmark", "dollar"]
Rules = Mapping[str, tuple[str, ...]]

# Not importlib.resources: that alone takes 13 ms to import.
ROOMS = Path(__file__).parents[1]
MIGRATIONS = Path(__file__).parent / "dialects" / "migrations"

_NOTHING: frozenset[str] = frozenset()
_NO_RULES: Rules = {}
_HEADER = re.compile(r"^-- (?P<fragment>fragment )?(?P<name>(?!bind:)[a-z][a-z0-9_]*): ", re.MULTILINE)
_RULE = re.compile(r"^-- bind: (?P<rule>[a-z]+)(?P<names>[a-z_ ,]*)$", re.MULTILINE)
_INSERT = re.compile(r"^(?P<indent>[ \t]*)-- insert (?P<name>[a-z_]+)\n", re.MULTILINE)
# The marks of optional blocks look like comments and stay.
_COMMENT = re.compile(r"^[ \t]*--(?! when [a-z_]+:$| end$).*\n?", re.MULTILINE)
_END = re.compile(r";[ \t]*(?:\n|$)")
_RETURNS = re.compile(r"^\s*(select|with|pragma)\b|\breturning\b", re.IGNORECASE)
_WHEN = re.compile(r"^(?P<line>.*?)[ \t]*-- when (?P<name>[a-z_]+)[ \t]*(?P<end>\n|$)", re.MULTILINE)
_WHEN_BLOCK = re.compile(
    r"^[ \t]*-- when (?P<name>[a-z_]+):\n(?P<lines>.*?)^[ \t]*-- end(?:\n|\Z)", re.MULTILINE | re.DOTALL
)
_EACH = re.compile(r"^(?P<line>.*?)[ \t]*-- each (?P<what>table|index)[ \t]*(?P<end>\n|$)", re.MULTILINE)
# A string literal, a cast, or a parameter: only the last is replaced.
_TOKEN = re.compile(r"'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)|%|\?")
# Also inside of a text: MySQL's migrations prepare what may be there already.
_MADE = re.compile(
    r"\bcreate table (?:if not exists )?holdfast_(?P<table>\w+)"
    r"|\bcreate sequence (?:if not exists )?holdfast_(?P<sequence>\w+)"
    r"|\bdrop table (?:if exists )?holdfast_(?P<gone_table>\w+)"
    r"|\balter table holdfast_(?P<renamed>\w+) rename to holdfast_(?P<name>\w+)"
    r"|\bdrop index (?:if exists )?holdfast_(?P<gone_index>\w+)"
    r"|\b(?:index|key) (?:concurrently )?(?:if not exists )?holdfast_(?P<index>\w+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """One statement in a driver's own parameter style; `names` gives the order of positional ones."""

    sql: str
    names: tuple[str, ...]
    returns: bool

    def positional(self, params: dict[str, Any]) -> tuple[Any, ...]:
        return tuple([params[name] for name in self.names])

    def spread(self, params: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """Write a list as one `%s` for each of its items; a list of nothing is a NULL, which equals nothing."""
        values = self.positional(params)
        if list not in map(type, values):
            return self.sql, values
        lists = [(value or [None]) if isinstance(value, list) else [value] for value in values]
        pieces = self.sql.split("%s")
        marks = [", ".join(["%s"] * len(items)) for items in lists]
        text = "".join(piece + mark for piece, mark in zip(pieces, [*marks, ""], strict=True))
        return text, tuple([item for items in lists for item in items])


class Written(NamedTuple):
    """A query as its file has it, with fragments in their places."""

    name: str
    # Its comments, from the line that names it on.
    head: str
    statements: tuple[str, ...]
    rules: Rules


class Texts(Protocol):
    """What a dialect has to say about the texts of queries."""

    name: ClassVar[str]
    # How `:now` is written when the database tells the time, and when a test does.
    own_now: ClassVar[str]
    told_now: ClassVar[str]
    quote: ClassVar[str]

    @property
    def lines(self) -> Mapping[str, bool]:
        """Say by name which lines its options put into its queries, and which they leave out."""

    def place(self, sql: str) -> str:
        """Put the configured prefix (and schema) on every Holdfast name."""

    def binding(self, statements: Sequence[str], rules: Rules) -> Any:
        """Read how a query's parameters are bound from its statements and its `-- bind` lines."""


class Query:
    """A named query with its tables' names filled in, and each form in which it was ever sent."""

    __slots__ = (
        "_compiled",
        "_texts",
        "binding",
        "by_rows",
        "counted",
        "head",
        "kept",
        "name",
        "optional",
        "parts",
        "single",
    )

    def __init__(self, texts: Texts, name: str, parts: Sequence[str], rules: Rules = _NO_RULES, head: str = "") -> None:
        self.name = name
        self.head = head
        self.parts = tuple(parts)
        self.optional = optional_names(self.parts)
        # How its dialect binds it; only the dialect looks into this.
        self.binding = texts.binding(self.parts, rules)
        # Whether the rows of a batch go to the driver one by one.
        self.by_rows = "rows" in rules
        # Whether how many rows a statement wrote answers for it, where it gives none back.
        self.counted = "counted" in rules
        # Whether it is one statement for the driver, too, and its rows are the answer.
        self.single = len(self.parts) == 1 and not (self.by_rows or self.counted or "each" in rules)
        # The calls of statements that are alike: see `calls.only_call`.
        self.kept: dict[Any, Any] = {}
        self._texts = texts
        self._compiled: dict[tuple[frozenset[str], Style, bool], tuple[Compiled, ...]] = {}

    def __repr__(self) -> str:
        return f"<query {self.name}>"

    def compiled(self, params: Mapping[str, Any], style: Style, clock_is_told: bool = False) -> tuple[Compiled, ...]:
        """Return its statements in the driver's style; `params` decide which optional lines they have."""
        optional = self.optional
        given = frozenset([name for name in optional if params.get(name) is not None]) if optional else _NOTHING
        key = (given, style, clock_is_told)
        found = self._compiled.get(key)
        if found is None:
            parts = self.chosen(given, clock_is_told)
            found = self._compiled[key] = tuple(compile_statement(part, style) for part in parts)
        return found

    def chosen(self, given: frozenset[str], clock_is_told: bool = False) -> list[str]:
        """Return its statements with the optional lines of these parameters, and `:now` as the database reads it."""
        now = self._texts.told_now if clock_is_told else self._texts.own_now
        parts = [chosen(part, given) for part in self.parts]
        return [with_now(part, now) for part in parts if part.strip()]


class Catalogue(dict[str, Query]):
    """The queries of one surface, or of all of ours, for one dialect; each is made at its first use."""

    def __init__(self, texts: Texts, written: Mapping[str, Written], names: Sequence[tuple[str, str]] = ()) -> None:
        self.written = written
        self._texts = texts
        self._named = naming(names, texts.quote)

    def __missing__(self, name: str) -> Query:
        written = self.written[name]
        place = self._texts.place
        lines = self._texts.lines
        parts = [
            self._named(place(written_each(settled(part, lines), self._texts.name))) for part in written.statements
        ]
        query = self[name] = Query(self._texts, name, parts, written.rules, written.head)
        return query

    def creating(self) -> list[str]:
        """Return the statements that make the tables, with the rows that belong to them."""
        makers = [self[name].parts for name in self.written if name.startswith("create")]
        return [part for parts in makers for part in parts if part.startswith(("create", "insert"))]


def naming(names: Sequence[tuple[str, str]], quote: str) -> Callable[[str], str]:
    """Return what puts a surface's names in the place of their placeholders.

    They are quoted, because other programs quote them and a capital letter then counts; inside of a text they are bare.
    """
    if not names:
        return str
    known = dict(names)
    pattern = re.compile(rf"('?)\b({'|'.join(map(re.escape, known))})\b")

    def placed(match: re.Match[str]) -> str:
        bare = known[match[2]]
        return f"'{bare}" if match[1] else f"{quote}{bare}{quote}"

    return lambda sql: pattern.sub(placed, sql)


def split_queries(text: str) -> dict[str, Written]:
    """Read a SQL file into its named queries."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    blocks = [(header, text[header.start() : end]) for header, end in zip(headers, ends, strict=True)]
    fragments = {header["name"]: _COMMENT.sub("", block) for header, block in blocks if header["fragment"]}
    queries: dict[str, Written] = {}
    for header, block in blocks:
        name = header["name"]
        if header["fragment"]:
            continue
        if name in queries:
            raise ConfigError("query", "each name once in a SQL file", name)
        queries[name] = _read_query(name, block, fragments)
    return queries


def _read_query(name: str, block: str, fragments: Mapping[str, str]) -> Written:
    lines = block.splitlines()
    length = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    rules = {match["rule"]: tuple(re.findall(r"\w+", match["names"])) for match in _RULE.finditer(block)}
    whole = _INSERT.sub(lambda match: _indented(fragments[match["name"]], match["indent"]), block)
    return Written(name, "\n".join(lines[:length]), split_statements(whole), rules)


def _indented(fragment: str, indent: str) -> str:
    lines = fragment.strip("\n").splitlines()
    own = len(lines[0]) - len(lines[0].lstrip())
    return "".join(f"{indent}{line[own:]}\n" for line in lines)


def split_statements(text: str) -> tuple[str, ...]:
    """Split SQL at each semicolon that ends a line; comments go."""
    return tuple(part.strip() for part in _END.split(_COMMENT.sub("", text)) if part.strip())


def optional_names(parts: Sequence[str]) -> frozenset[str]:
    """Name the parameters that decide which lines a query has."""
    marks = (mark.finditer(part) for part in parts for mark in (_WHEN, _WHEN_BLOCK))
    return frozenset(match["name"] for found in marks for match in found)


def chosen(sql: str, given: frozenset[str]) -> str:
    """Leave out the lines, and the blocks of lines, whose parameter is not given; and all marks."""
    blocks = _WHEN_BLOCK.sub(lambda block: block["lines"] if block["name"] in given else "", sql)
    return _WHEN.sub(lambda line: line["line"] + line["end"] if line["name"] in given else "", blocks)


def settled(sql: str, lines: Mapping[str, bool]) -> str:
    """Leave out the lines, and the blocks of lines, that these names rule out, and the marks of those that stay."""

    def of_block(block: re.Match[str]) -> str:
        there = lines.get(block["name"])
        return block[0] if there is None else block["lines"] if there else ""

    def of_line(line: re.Match[str]) -> str:
        there = lines.get(line["name"])
        return line[0] if there is None else line["line"] + line["end"] if there else ""

    return _WHEN.sub(of_line, _WHEN_BLOCK.sub(of_block, sql)) if lines else sql


def with_now(sql: str, now: str) -> str:
    """Write the time in the place of `:now`."""
    return _TOKEN.sub(lambda match: now if match[1] == "now" else match[0], sql)


def written_each(sql: str, dialect: str) -> str:
    """Write the lines that stand once for each table, or each index, of the migrations."""

    def lines(match: re.Match[str]) -> str:
        made = schema_names(dialect)
        names = made.tables if match["what"] == "table" else made.indexes
        return "".join(match["line"].replace("holdfast_each", f"holdfast_{name}") + match["end"] for name in names)

    return _EACH.sub(lines, sql)


def compile_statement(sql: str, style: Style) -> Compiled:
    """Write `:name` parameters the way a driver wants them."""
    names: list[str] = []

    def write(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            # Also inside a literal: these styles read every percent sign.
            return match[0].replace("%", "%%") if style in ("pyformat", "format") else match[0]
        if style == "named":
            return f":{name}"
        if style == "pyformat":
            return f"%({name})s"
        if style == "dollar":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return "%s" if style == "format" else "?"

    text = _TOKEN.sub(write, sql)
    if not names:
        names = list(dict.fromkeys(m[1] for m in _TOKEN.finditer(sql) if m[1]))
    return Compiled(text, tuple(names), bool(_RETURNS.search(sql)))


@lru_cache
def written_in(room: str, dialect: str) -> Mapping[str, Written]:
    """Read the queries of a room for a database.

    Raises: ConfigError when that database has no file there.
    """
    folder = ROOMS / room / "sql"
    file = folder / f"{dialect}.sql"
    if not file.is_file():
        there = " and ".join(sorted(other.stem for other in folder.glob("*.sql")))
        raise ConfigError(room.partition("/")[0], f"these tables are served on {there} only", dialect)
    return split_queries(file.read_text("utf-8"))


def own_rooms() -> list[str]:
    """Name the rooms that have queries on Holdfast's own tables."""
    return sorted(folder.parent.name for folder in ROOMS.glob("*/sql"))


def foreign_rooms(dialect: str) -> list[str]:
    """Name the rooms that have queries on tables that other programs share, on a database."""
    return sorted(str(file.parents[1].relative_to(ROOMS)) for file in ROOMS.glob(f"*/*/sql/{dialect}.sql"))


@lru_cache
def own_queries(dialect: str) -> Mapping[str, Written]:
    """Read the queries of all of Holdfast's own tables for a database."""
    queries: dict[str, Written] = {}
    for room in own_rooms():
        found = written_in(room, dialect)
        if twice := sorted(queries.keys() & found.keys()):
            raise ConfigError("query", "each name in one room", twice[0])
        queries |= found
    return queries


def catalogue_of(texts: Texts, surface: Surface) -> Catalogue:
    """Make the catalogue of tables that are not Holdfast's own.

    Raises: ConfigError, by the name of the tables, when they are not served on that database.
    """
    try:
        written = written_in(surface.room, texts.name)
    except ConfigError as error:
        raise ConfigError(surface.under, error.rule, error.value) from None
    return Catalogue(texts, written, surface.names)


class SchemaNames(NamedTuple):
    """What the migrations make, without the prefix and in the order of the names."""

    tables: tuple[str, ...]
    indexes: tuple[str, ...]
    sequences: tuple[str, ...] = ()


def names_made(texts: Iterable[str]) -> SchemaNames:
    """Read which tables, indexes and sequences are there when these migrations have run."""
    found: dict[str, set[str]] = {"table": set(), "index": set(), "sequence": set()}
    for text in texts:
        for match in _MADE.finditer(_COMMENT.sub("", text)):
            group = str(match.lastgroup)
            if group == "name":
                found["table"] = (found["table"] - {match["renamed"]}) | {match["name"]}
                continue
            change = set.discard if group.startswith("gone_") else set.add
            change(found[group.removeprefix("gone_")], match[group])
            if group == "gone_table":
                # An index goes with its table.
                found["index"] = {name for name in found["index"] if not name.startswith(f"{match[group]}_")}
    return SchemaNames(*(tuple(sorted(found[what])) for what in ("table", "index", "sequence")))


@lru_cache
def schema_names(dialect: str) -> SchemaNames:
    """Read which tables and indexes the migrations of a database make; `meta` is made before them."""
    return names_made(text for _, _, text in migration_files(dialect))


def migration_files(dialect: str) -> list[tuple[int, str, str]]:
    """List (number, title, text) of a dialect's migrations in their order."""
    found = []
    for entry in (MIGRATIONS / dialect).iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            found.append((int(match[1]), match[2], entry.read_text("utf-8")))
    return sorted(found)
