"""The search of jobs: `queue:mail state:dead error:"timed out" since:2h`, and what it means."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from holdfast.errors import ConfigError
from holdfast.life.listing import Wanted
from holdfast.values.ids import parse_id
from holdfast.values.spoken import moment_in

# What a qualifier asks for, and an example of it.
QUALIFIERS = {
    "state": "state:dead,leased",
    "queue": "queue:mail",
    "kind": "kind:send_receipt",
    "key": "key:order:9182",
    "worker": "worker:web1-4821-7f3a",
    "error": 'error:"timed out"',
    "group": "group:3f9c2a7d51e08b64",
    "event": "event:order.created",
    "since": "since:2h",
    "until": "until:2026-05-01",
    "id": "id:01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f",
}
LONGEST_SEARCH = 2_000
MOST_IDS = 200
_WORD = re.compile(r"""(?:(?P<name>[A-Za-z_]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]\S*))""")


def wanted_of(search: str) -> Wanted:
    """Read a search; a word without a qualifier is an id, or a kind. Raises: ConfigError, which says what to write."""
    if len(search) > LONGEST_SEARCH:
        raise ConfigError("q", f"must be shorter than {LONGEST_SEARCH} characters", f"{search[:40]}…")
    wanted, seen = Wanted(), set[str]()
    for name, value in _words(search):
        if name in seen and name not in ("state", "id"):
            raise ConfigError("q", f"says {name}: twice; all that is said must hold, so say it once", search)
        seen.add(name)
        wanted = _with(wanted, name, value)
    return wanted


def _words(search: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for match in _WORD.finditer(search):
        name = (match["name"] or "").lower()
        value = match["plain"] if match["quoted"] is None else re.sub(r"\\(.)", r"\1", match["quoted"])
        if name and name not in QUALIFIERS:
            near = get_close_matches(name, QUALIFIERS, 1)
            hint = f"did you mean {near[0]}:?" if near else f"there are {', '.join(f'{one}:' for one in QUALIFIERS)}"
            raise ConfigError("q", f"has no qualifier {name}: ({hint})", search)
        found.append((name or ("id" if _is_id(value) else "kind"), value))
    return found


def _with(wanted: Wanted, name: str, value: str) -> Wanted:
    match name:
        case "state":
            return replace(wanted, states=(*wanted.states, *filter(None, value.lower().split(","))))
        case "id":
            ids = (*wanted.ids, *filter(None, value.split(",")))
            if len(ids) > MOST_IDS:
                raise ConfigError("q", f"may name {MOST_IDS} ids", len(ids))
            return replace(wanted, ids=ids)
        case "since":
            return replace(wanted, created_after=_moment(name, value))
        case "until":
            return replace(wanted, created_before=_moment(name, value))
        case _:
            given: dict[str, Any] = {name: value}
            return replace(wanted, **given)


def _moment(name: str, value: str) -> datetime:
    moment = moment_in(value)
    if moment is None:
        raise ConfigError("q", f"{name}: takes 2h for two hours ago, or 2026-05-01T12:30", value)
    return moment


def _is_id(word: str) -> bool:
    try:
        parse_id(word.lower())
    except ConfigError:
        return False
    return True


def said(**parts: str | None) -> str:
    """Write a search that means these parts."""
    return " ".join(f"{name}:{_quoted(value)}" for name, value in parts.items() if value)


def _quoted(value: str) -> str:
    if re.search(r'[\s"\\]', value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return value
