"""What of the rows is shown: values under keys that sound like secrets are hidden, at any depth, and what you say."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from holdfast.errors import redact as without_passwords
from holdfast.values.views import decoded

HIDDEN = "•••"
# Parts of the names of keys, in any case of letters; `-`, `_` and spaces count for nothing.
SECRET_KEYS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "privatekey",
    "sessionid",
    "creditcard",
    "cardnumber",
    "cvv",
    "iban",
    "ssn",
)
DEEPEST = 60

# Where a value stands: ("payload", "customer", "email"), ("errors", 0, "message").
Where = tuple[str | int, ...]
Redact = Callable[[Where, Any], Any]
_PARTS = re.compile(r"[-_\s.]+")
# In texts such as messages and tracebacks: key=value, key: value, "key": "value", also as JSON within JSON. What stands
# before the word is not asked for and what stands behind it is bounded: a value of a megabyte takes as long as it has
# letters, where `[\w.-]*` before the word made 8,000 of them take 15 s.
_KEY = r"""(?P<key>(?:{keys})[\w.-]{{0,100}}+\\*["']?\s*+[=:]\s*+)"""
_SCHEME = r"(?:(?:Bearer|Basic|Digest|Token|ApiKey|Negotiate)\s+)?"
_SAID = _KEY + r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|""" + _SCHEME + r"""[^\s,;&)}}\]]+)"""


class Redaction:
    """Hides values by the names of their keys, and by what the application's own function says."""

    def __init__(self, keys: Collection[str] = SECRET_KEYS, redact: Redact | None = None) -> None:
        self._keys = tuple(_plain(key) for key in keys if _plain(key))
        self._redact = redact
        spelled = "|".join("[-_ ]?".join(map(re.escape, key)) for key in self._keys)
        self._in_text = re.compile(_SAID.format(keys=spelled), re.IGNORECASE | re.DOTALL) if spelled else None

    def shown(self, value: Any, *where: str | int) -> Any:
        """Return what people may see of a value that stands there."""
        return self._walk(where, value, 0)

    def stored(self, text: str | None, *where: str | int) -> Any:
        """Return what people may see of stored JSON, or of a text that is not JSON."""
        return self.shown(decoded(text), *where)

    def _walk(self, where: Where, value: Any, depth: int) -> Any:
        if any(isinstance(part, str) and self._is_secret(part) for part in where[-1:]):
            return HIDDEN
        if self._redact is not None:
            try:
                value = self._redact(where, value)
            except Exception:
                # What cannot be judged is not shown.
                return HIDDEN
        if depth >= DEEPEST and isinstance(value, dict | list | tuple):
            return HIDDEN
        if isinstance(value, dict):
            return {key: self._walk((*where, str(key)), one, depth + 1) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk((*where, place), one, depth + 1) for place, one in enumerate(value)]
        return self.text(value) if isinstance(value, str) else value

    def failure(self, named: object, message: object, *where: str | int) -> str:
        """Return what people may see of an error; a foreign one may have all its words in its type."""
        said, kind = self.shown(message, *(where or ("errors", 0, "message"))), self.text(str(named or ""))
        return f"{kind}: {said}" if said else kind

    def text(self, text: str) -> str:
        """Hide in a text what is said like a secret, and the passwords of URLs."""
        lines = "\n".join(without_passwords(line) for line in text.split("\n")) if "://" in text else text
        if self._in_text is None:
            return lines
        return self._in_text.sub(lambda found: found["key"] + HIDDEN, lines)

    def _is_secret(self, key: str) -> bool:
        plain = _plain(key)
        return any(secret in plain for secret in self._keys)


def _plain(key: str) -> str:
    return _PARTS.sub("", key).lower()
