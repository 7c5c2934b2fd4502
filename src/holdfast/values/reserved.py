"""Names that Holdfast keeps for itself: those of the queues and kinds that routes have."""

from __future__ import annotations

from holdfast.errors import ConfigError

# Each route has a queue and a kind of this name.
ROUTE_PREFIX = "route:"
# Where events wait that no route takes.
UNROUTED = f"{ROUTE_PREFIX}-"


def is_route(queue: str) -> bool:
    """Tell whether a queue is one of a route."""
    return queue.startswith(ROUTE_PREFIX)


def route_of(queue: str) -> str:
    """Return the name of the route that a queue belongs to; of the queue of events that no route takes: "-"."""
    return queue.removeprefix(ROUTE_PREFIX)


def unreserved(name: object, field: str) -> None:
    """Check that a name is not one of those that routes have; anything but a text is for others to refuse."""
    if isinstance(name, str) and is_route(name):
        rule = f"must not begin with {ROUTE_PREFIX!r}: such names belong to routes (hf.route, hf.publish)"
        raise ConfigError(field, rule, name)
