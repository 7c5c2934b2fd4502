"""Reading two SQL files as one text with explained differences.

`plain` takes out of a query what the head of SQLite's file says differs throughout: how times are written, how batches
and lists are bound, casts, row locks and notifications. What is left is the same, or the query says why it is not.
"""

import re

from holdfast import jobs
from holdfast.store.catalogue import ROOMS, own_rooms
from holdfast.values.rows import Finish, Held, PutBack
from tests.plans.explain import first_statement

HEADER = re.compile(r"^-- (?:fragment )?((?!bind:)[a-z][a-z0-9_]*): ", re.MULTILINE)

# Each pair is one of the differences that hold throughout, as SQLite's file names them at its head.
TIMES = [
    (r" \* interval '1 millisecond'", " * 1000"),
]
CASTS = [
    (r"cast\(([^()]+) as \w+\)", r"\1"),
    (r"(::\w+(\[\])?)+", ""),
]
LISTS = [
    (r"not \((\w+) = any \(:(\w+)\)\)", r"\1 not in :\2"),
    (r"= any \(:(\w+)\)", r"in :\1"),
    (r"in \(select value from json_each\(:(\w+)\)\)", r"in :\1"),
]
# A held job is found by its id, and its place in the batch by halving; elsewhere the batch is joined.
HELD = [
    (r"^with held as materialized \([^()]*\)\n", ""),
    (r"\n   and j\.id = \(\(select id from held\)\)\[width_bucket\(j\.id, \(select id from held\)\)\]\n  ", ""),
    (r"\(\(select (\w+) from held\)\)\[width_bucket\(j\.id, \(select id from held\)\)\]", r"u.\1"),
    # Texts that are JSON come as one array of it, which counts from 0 and has its own null.
    (r"nullif\(\(select error from held\) -> \(width_bucket\(j\.id, [^-]* - 1\), 'null'\)", "u.error"),
    (r" where j\.id = any \(\(select id from held\)\) and", r"  from batch u\n where j.id = u.id and"),
    (r"any \(\(select :(\w+)\)\)", r"any (:\1)"),
]
LOCKS = [(r"\s+for update( skip locked)?", "")]
# Appending to a JSON array, and the names that only one of the two needs before a column.
JSON = [
    (
        r"json_insert\(\s*case when errors is null then '\[\]'\s+when json_valid\(errors\)"
        r" and json_type\(errors\) = 'array' then errors\s+else json_array\(errors\) end,"
        r" '\$\[#\]', json\(u\.error\)\)",
        "coalesce(errors, '[]') || u.error",
    ),
    (
        r"coalesce\(coalesce\(j\.errors, '\[\]'\)\s+\|\| u\.error,\s+j\.errors\)",
        "case when u.error is null then errors else coalesce(errors, '[]') || u.error end",
    ),
    (r"json_extract\((f\.)?errors, '\$\[#-1\]\.(\w+)'\)", r"\1errors -> -1 ->> '\2'"),
]
NAMES = [
    (r"\bleast\(", "min("),
    (r"\bgreatest\(", "max("),
    (r"\b(holdfast_jobs|holdfast_keys|j|k)\.", ""),
    (r"^(update|delete from) (holdfast_\w+) [jk]$", r"\1 \2"),
]
NOTIFY = [(r",\s+case when :channel is not null.*?end", "")]

BATCH = re.compile(r"unnest\(((?:[^()]|\([^()]*\))*)\)(?: with ordinality)?\s+as u \(([^()]*)\)")
FIELDS = re.compile(r"select (key as id, )?(json_extract\(value.*?)\s+from json_each\(:batch\)\) u")
FIELD = re.compile(r"json_extract\(value, '\$\[\d+\]'\) as (\w+)")
# In the order in which the flows give them.
COLUMNS = {
    name: list(first_statement(work).batch or {})
    for name, work in {
        "renew": jobs.renew([(Held("", 1), 1)]),
        "put_back": jobs.settle([PutBack("", 1)]),
        "finish": jobs.settle([Finish("", 1, "done")]),
        "drop": jobs.settle([Finish("", 1, "done", keep=False)]),
    }.items()
} | {"waits_moved": ["parent", "next"], "waits_end": ["parent", "outcome", "result"]}
ELEMENT = re.compile(r"json_extract\(u\.value, '\$\[(\d+)\]'\)")


def queries(name: str) -> dict[str, tuple[str, str]]:
    """Read the files of a database into (comments, SQL) by query name, in order; fragments are among them."""
    files = [ROOMS / room / "sql" / f"{name}.sql" for room in own_rooms()]
    return {query: found for file in files for query, found in _queries(file.read_text("utf-8")).items()}


def _queries(text: str) -> dict[str, tuple[str, str]]:
    headers = list(HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    return {header[1]: _split(text[header.start() : end]) for header, end in zip(headers, ends, strict=True)}


def _split(block: str) -> tuple[str, str]:
    lines = block.strip().splitlines()
    comments = [line for line in lines if line.startswith("--")]
    return "\n".join(comments), "\n".join(line for line in lines if not line.startswith("--"))


def plain(sql: str, columns: list[str]) -> str:
    """Write a query without what differs throughout; `columns` names the fields of its batch."""
    for pattern, better in TIMES + CASTS + HELD + LISTS + LOCKS:
        sql = re.sub(pattern, better, sql)
    sql = BATCH.sub("batch u", sql)
    sql = re.sub(rf"\({FIELDS.pattern}", "batch u", sql, flags=re.DOTALL)
    sql = sql.replace("json_each(:batch) u", "batch u")
    sql = ELEMENT.sub(lambda match: f"u.{columns[int(match[1])]}", sql)
    for pattern, better in JSON + NAMES + NOTIFY:
        sql = re.sub(pattern, better, sql, flags=re.MULTILINE | re.DOTALL)
    return " ".join(sql.split())


def batch_columns(name: str, postgres: str) -> list[str]:
    """Name the fields of a query's batch, as PostgreSQL's file or, where that finds each by name, the flow does."""
    if name in COLUMNS:
        return COLUMNS[name]
    found = BATCH.search(postgres)
    return [column.strip() for column in found[2].split(",")] if found else []


def field_names(sqlite: str) -> list[str]:
    """Name the fields that SQLite's file reads out of its batch, in their order."""
    found = re.search(FIELDS.pattern, sqlite, flags=re.DOTALL)
    return ["id"] * bool(found[1]) + FIELD.findall(found[2]) if found else []
