"""Read the SQL of a contract: one file per database, with the tables' configured names filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from holdfast.errors import ConfigError
from holdfast.foreign.queries import Queries
from holdfast.store.dialects.base import Dialect, split_queries

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\bforeign_[a-z_]+\b")
_QUOTE = {"mysql": "`"}
_TABLES = ("foreign_jobs", "foreign_failed", "foreign_tasks", "foreign_results")


def name_of(value: object, field: str, longest: int) -> str:
    """Check a table name or prefix, which become part of SQL text."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > longest:
        rule = f"must be 1 to {longest} letters, digits and _, not starting with a digit"
        raise ConfigError(field, rule, value)
    return value


def load(dialect: Dialect, contract: str, under: str, names: Mapping[str, str]) -> Queries:
    """Read the queries of a contract for a database; `names` says what stands for each placeholder.

    Names are quoted, because other programs quote them and a capital letter then counts; `foreign_lock` is bare text.
    """
    folder = resources.files("holdfast.foreign").joinpath("sql")
    entry = folder.joinpath(f"{contract}.{dialect.name}.sql")
    if not entry.is_file():
        there = sorted(p.name.split(".")[1] for p in folder.iterdir() if p.name.startswith(f"{contract}."))
        raise ConfigError("foreign", f"these tables are served on {' and '.join(there)} only", dialect.name)
    mark = _QUOTE.get(dialect.name, '"')

    def placed(match: re.Match[str]) -> str:
        return names[match[0]] if match[0] == "foreign_lock" else f"{mark}{names[match[0]]}{mark}"

    raw = split_queries(entry.read_text("utf-8"))
    texts = {name: tuple(_PLACEHOLDER.sub(placed, part) for part in parts) for name, parts in raw.items()}
    return Queries(under, texts, tuple(name for part, name in names.items() if part in _TABLES))
