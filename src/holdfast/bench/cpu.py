"""CPU seconds of the machine and of a PostgreSQL server on it, as /proc tells them; None where it does not."""

from __future__ import annotations

import os
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


def server_seconds(url: str) -> float | None:
    """Return what a PostgreSQL server on this machine used: its first process, the others, and those that ended."""
    dialect = dialect_for(url, StoreOptions())
    if dialect.name != "postgres":
        return None
    raw = dialect.connect(url)
    try:
        return _family_seconds(_first_process(raw))
    except (OSError, LookupError):
        return None
    finally:
        raw.close()


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
