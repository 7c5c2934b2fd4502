"""How far streams have been received that keep no such note themselves."""

from __future__ import annotations

from hashlib import blake2b

from holdfast.flow import Steps, ask, flow, text_of

# So that texts compare as the numbers do.
DIGITS = 20


def position_name(kind: str, stream: str) -> str:
    """Return the name of a position: of what one handler receives from one stream."""
    return "position " + blake2b(f"{kind}\n{stream}".encode(), digest_size=15).hexdigest()


@flow
def position(name: str) -> Steps[int | None]:
    """Read how far a stream has been received; None where nothing was.

    Commits: nothing.
    """
    rows = yield from ask("position_read", name=name)
    return int(text_of(rows[0][0])) if rows else None


def note_position(name: str, position: int) -> Steps[None]:
    """Note how far a stream has been received, in the transaction that stores its messages."""
    yield from ask("position_write", name=name, position=f"{position:0{DIGITS}}")
