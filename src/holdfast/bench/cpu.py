"""CPU seconds of the machine, of a process and of a database server, as /proc tells them; None where it does not."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions

TICKS = os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float | None:
    """Return how long the CPUs were busy since the machine started."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    ticks = list(map(int, fields))
    idle, waiting = ticks[3:5]
    return (sum(ticks[:8]) - idle - waiting) / TICKS


def process_seconds(pid: int) -> float | None:
    """Return what a process used, all its threads together."""
    try:
        _, fields = _stat(pid)
    except OSError:
        return None
    return sum(map(int, fields[11:13])) / TICKS


def server_seconds(url: str) -> float | None:
    """Return what the database server used, if it is on this machine and a process of its own."""
    dialect = dialect_for(url, StoreOptions())
    if dialect.embedded:
        return None
    with closing(dialect.connect(url)) as raw:
        return postgres_seconds(raw) if dialect.name == "postgres" else mysql_seconds(raw)


def postgres_seconds(raw: Any) -> float | None:
    """Return what a PostgreSQL server on this machine used: its first process, the others, and those that ended."""
    try:
        return _family_seconds(_first_process(raw))
    except (OSError, LookupError):
        return None


def mysql_seconds(raw: Any) -> float | None:
    """Return what a MySQL or MariaDB server on this machine used."""
    try:
        # It says in which file it wrote its id; where that is another machine's, there is none, or another process.
        [file] = raw.execute("select @@pid_file").fetchone()
        pid = int(Path(file).read_text())
        name, _ = _stat(pid)
    except (OSError, ValueError):
        return None
    return process_seconds(pid) if name.startswith(("mysqld", "mariadbd")) else None


def _first_process(raw: Any) -> int:
    """Find the parent of the backends; LookupError when they are not this machine's."""
    [pid] = raw.execute("select pg_backend_pid()").fetchone()
    name, fields = _stat(pid)
    if name != "postgres":
        raise LookupError(pid)
    return int(fields[1])


def _family_seconds(first: int) -> float:
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, fields = _stat(int(folder.name))
        except OSError:
            continue
        if int(folder.name) == first:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == first:
            ticks += sum(map(int, fields[11:13]))
    return ticks / TICKS


def _stat(pid: int) -> tuple[str, list[str]]:
    """Read a process's name and what follows it: state, parent, …, and from the twelfth on its CPU ticks."""
    head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return head.partition("(")[2], rest.split()
