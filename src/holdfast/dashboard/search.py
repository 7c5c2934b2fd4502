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
# A word that looks like a qualifier without its value.
_BARE = re.compile(r"""(?P<name>[A-Za-z_]+):(?P<rest>"|$)""")
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
    end = 0
    for match in _WORD.finditer(search):
        # What stands between two words is a quotation that has no end, or what follows one without a space.
        if search[end : match.start()].strip() or (found and match.start() == end):
            raise _unreadable(search, end)
        found.append(_word(search, match))
        end = match.end()
    if search[end:].strip():
        raise _unreadable(search, end)
    return found


def _word(search: str, match: re.Match[str]) -> tuple[str, str]:
    quoted, value = match["quoted"], match["plain"]
    # Of `queue:` and `error:"timed` the value is missing, or begins a quotation that has no end.
    bare = None if quoted is not None or match["name"] else _BARE.match(value)
    name = (bare["name"] if bare else match["name"] or "").lower()
    if name and name not in QUALIFIERS:
        near = get_close_matches(name, QUALIFIERS, 1)
        hint = f"did you mean {near[0]}:?" if near else f"there are {', '.join(f'{one}:' for one in QUALIFIERS)}"
        raise ConfigError("q", f"has no qualifier {name}: ({hint})", search)
    if bare:
        raise _unreadable(search, match.start()) if bare["rest"] else _without_value(name, search)
    if quoted is not None:
        value = re.sub(r"\\(.)", r"\1", quoted)
    return name or ("id" if _is_id(value) else "kind"), value


def _without_value(name: str, search: str) -> ConfigError:
    return ConfigError("q", f"needs what {name}: asks for, without a space: {QUALIFIERS[name]}", search)


def _unreadable(search: str, place: int) -> ConfigError:
    rest = search[place:].strip()[:40]
    rule = f'cannot be read from {rest} on: a quotation needs its end, and a space behind it, as in error:"timed out"'
    return ConfigError("q", rule, search)


def _with(wanted: Wanted, name: str, value: str) -> Wanted:
    match name:
        case "state":
            return replace(wanted, states=(*wanted.states, *_listed(name, value.lower())))
        case "id":
            ids = (*wanted.ids, *_listed(name, value))
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


def _listed(name: str, value: str) -> list[str]:
    """Read a list; one that names nothing must not come to mean everything."""
    if said := [one for one in value.split(",") if one]:
        return said
    raise _without_value(name, value)


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
