"""Keys by which something happens once: messages that were received, and effects that were recorded."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from holdfast.values.retry import DAY
from holdfast.values.texts import KEY_LENGTH, NAME_LENGTH, text

# Brokers and webhooks repeat a message within hours, at most days.
INBOX_WINDOW = 7 * DAY
# Longer than dead letters are kept by default: one that is replayed must not repeat its effect.
ONCE_WINDOW = 90 * DAY
# What the scopes of such keys have at their end. They stand in the table of idempotency keys, whose scope is a kind.
INBOX_SCOPE = " (inbox)"
RECEIVED_SCOPE = " (received)"
ONCE_SCOPE = "(once)"

# No message is known by more than this.
_LONGEST = 100_000
_DIGEST = "sha256:"


def message_scope(source: object) -> str:
    """Name the scope of the messages that come from a source."""
    return bounded(text(source, "source", _LONGEST), NAME_LENGTH) + INBOX_SCOPE


def message_key(message_id: object) -> str:
    """Name a message within its source."""
    return bounded(text(message_id, "message_id", _LONGEST), KEY_LENGTH)


def received_scope(kind: str) -> str:
    """Name the scope of what a handler has received: each handler of a message counts for itself."""
    return kind + RECEIVED_SCOPE


def received_key(source: str, message_id: str) -> str:
    """Name a message among all that a handler receives."""
    return bounded(msgspec.json.encode([source, message_id]).decode(), KEY_LENGTH)


def bounded(value: str, longest: int) -> str:
    """Return a text that fits into a column: itself, or a digest of it where it is too long."""
    # A text that looks like a digest becomes one, too: nobody can send another one's.
    if len(value) <= longest and not value.startswith(_DIGEST):
        return value
    return _DIGEST + sha256(value.encode()).hexdigest()
