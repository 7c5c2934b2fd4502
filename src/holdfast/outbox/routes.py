"""Routes: which events go to which sink, how much at once, and the queue that each route's deliveries are in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from holdfast.errors import ConfigError
from holdfast.outbox.patterns import Pattern, event_type
from holdfast.sinks import Sink
from holdfast.values.reserved import ROUTE_PREFIX
from holdfast.values.retry import Duration, Retry, seconds, whole, without_exceptions

# A receiver that fails is tried again quickly at first, and for a quarter of an hour in all.
ROUTE_RETRY = Retry(max_attempts=10, first_delay=1.0)
MOST_MESSAGES = 10_000
MOST_BYTES = 2**40
# Of how many types the routes are kept in mind.
TYPES_KEPT = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, eq=False)
class Route:
    """One way out: events whose type fits `pattern` are delivered to `sink`.

    retry: how often and how late a delivery that failed is tried again. timeout: of one call of the sink. lease: how
    long a relay may be silent before another takes over. batch, batch_bytes: the most that one call of the sink takes.
    in_flight_bytes: the most that one relay holds of this route.
    """

    name: str
    pattern: Pattern
    sink: Sink
    retry: Retry = ROUTE_RETRY
    timeout: Duration = 30.0
    lease: Duration = 30.0
    batch: int = 100
    batch_bytes: int = 2**20
    in_flight_bytes: int = 2**24

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            rule = "must be 1 to 80 letters, digits, '.', '_' and '-', with a letter or digit first; give name="
            raise ConfigError("name", rule, self.name)
        given: object = self.sink
        if not isinstance(given, Sink):  # pyright: ignore[reportUnnecessaryIsInstance]
            rule = "must be a sink of holdfast.sinks, or an object with `send` and `close` as `holdfast.sinks.Sink` has"
            raise ConfigError("to", rule, given)
        without_exceptions(self.retry, "a sink says itself what it refuses; a function raises Fatal")
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout", at_least=0.001))
        object.__setattr__(self, "lease", seconds(self.lease, "lease", at_least=1.0))
        whole(self.batch, "batch", 1, MOST_MESSAGES)
        for name in ("batch_bytes", "in_flight_bytes"):
            whole(getattr(self, name), name, 1, MOST_BYTES)

    @cached_property
    def queue(self) -> str:
        """The queue that its deliveries are in, which is also their kind."""
        return ROUTE_PREFIX + self.name


class Routes:
    """The routes of an application, by name, and which of them take events of a type."""

    def __init__(self) -> None:
        self.by_name: dict[str, Route] = {}
        # By type; types come out of the program's code, so they are few.
        self._taking: dict[str, tuple[Route, ...]] = {}

    def __iter__(self) -> Iterator[Route]:
        return iter(self.by_name.values())

    def check_new(self, route: Route) -> None:
        """Raise ConfigError where the name of a route is taken."""
        if route.name in self.by_name:
            raise ConfigError("name", "each route has a name of its own; give this one another name=", route.name)

    def add(self, route: Route) -> None:
        """Take in a route. Raises: ConfigError where its name is taken."""
        self.check_new(route)
        self.by_name[route.name] = route
        # A new one: a thread that is just asking may still fill the old one with what it found before.
        self._taking = {}

    def named(self, name: str) -> Route:
        """Find a route by its name. Raises: ConfigError, which lists those that there are."""
        if name not in self.by_name:
            rule = f"must be a route of this application: {', '.join(self.by_name) or 'it has none'}"
            raise ConfigError("route", rule, name)
        return self.by_name[name]

    def taking(self, type: str) -> tuple[Route, ...]:
        """List the routes that take events of a type; the type is checked. Raises: ConfigError."""
        taking = self._taking
        found = taking.get(type)
        if found is None:
            checked = event_type(type)
            found = tuple(route for route in self if route.pattern.matches(checked))
            if len(taking) < TYPES_KEPT:
                taking[type] = found
        return found
