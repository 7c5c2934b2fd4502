"""How events are told: the class that all of them are of, and who hears of which."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.errors import ConfigError

log = logging.getLogger("holdfast")


class Event(msgspec.Struct, frozen=True):
    """One thing that happened. `level` is what the log gives it.

    Structs, not dataclasses: the module is imported in 5 ms of CPU instead of 28, a JobDone made in 0.2 µs and not 1.2.
    """

    level: ClassVar[int] = logging.INFO

    @property
    def name(self) -> str:
        return type(self).__name__

    def fields(self) -> dict[str, Any]:
        """Give what a log may keep: all but the exception object, which cannot be written down."""
        told = msgspec.structs.asdict(self)
        told.pop("exception", None)
        return told

    def __str__(self) -> str:
        return self.line(str)

    def line(self, shown: Callable[[str], str]) -> str:
        """Say it in one line, with each value as `shown` shows it."""
        told = [
            # Seconds to the microsecond: what a clock says beyond that is noise.
            f"{name}={shown(str(round(value, 6) if isinstance(value, float) else value))}"
            for name, value in self.fields().items()
            if value is not None and value != "" and name != "traceback"
        ]
        return f"{_words(self.name)}: {', '.join(told)}" if told else _words(self.name)


@cache
def _words(name: str) -> str:
    """WorkerStarted → worker started."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


E = TypeVar("E", bound=Event)
Subscriber = Callable[[Any], None]


class Events:
    """Hands each event to everyone who subscribed to its class or a base of it."""

    def __init__(self) -> None:
        self._subscribers: list[tuple[type[Event], Subscriber]] = []
        self._by_class: dict[type[Event], tuple[Subscriber, ...]] = {}

    def subscribe(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        check_event(kind)
        if not callable(subscriber):
            raise ConfigError("subscriber", "must be a function that takes the event", subscriber)
        if inspect.iscoroutinefunction(subscriber):
            raise ConfigError("subscriber", "must be a plain function: events are told as they happen", subscriber)
        self._subscribers.append((kind, subscriber))
        # A new one: a thread that is just asking may still fill the old one with what it found before.
        self._by_class = {}

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether anybody listens, so that a hot path need not build what nobody reads."""
        listeners = self._by_class.get(kind) or self._of(kind)
        if listeners == (log_events,):
            return log.isEnabledFor(kind.level)
        return bool(listeners)

    def emit(self, event: Event) -> None:
        for subscriber in self._of(type(event)):
            try:
                subscriber(event)
            except KeyboardInterrupt:
                # Nobody can tell it from Ctrl-C in a program that only enqueues.
                raise
            except BaseException:
                complain("a subscriber of %s failed; the work goes on", event.name)

    def _of(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        by_class = self._by_class
        found = by_class.get(kind)
        if found is None:
            found = tuple(fn for wanted, fn in self._subscribers if issubclass(kind, wanted))
            by_class[kind] = found
        return found


def check_event(kind: object) -> None:
    """Refuse what is not a class of events."""
    if not _is_event_class(kind):
        rule = "must be a class of holdfast.events, as in hf.on(events.JobDone, subscriber)"
        if BaseException in getattr(kind, "__mro__", ()):
            name = getattr(kind, "__name__", "it")
            rule = f"must be an event: {name} of holdfast is an exception; events are in holdfast.events"
        raise ConfigError("event", rule, kind)


def _is_event_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)


def complain(message: str, *about: Any, error: BaseException | None = None) -> None:
    """Log an error with its traceback, that of the exception being handled by default; never raise.

    A handler or filter of the application's logging may fail, and so may an exception that is asked for its text.
    """
    for exc_info in (True if error is None else error, None):
        try:
            log.error(message, *about, exc_info=exc_info)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: S112 - then without the traceback, or not at all
            continue
        return


def log_events(event: Event) -> None:
    """The first subscriber: every event as a line of the `holdfast` logger, its fields in `extra`."""
    if log.isEnabledFor(event.level):
        log.log(event.level, "%s", event, extra={"holdfast": {"event": event.name, **event.fields()}})
