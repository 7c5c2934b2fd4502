"""Which consumer serves which broker."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer


def consumer_of(broker: Any) -> Consumer:
    """Make a consumer of a broker that is not connected yet.

    Raises: ConfigError for what messages cannot be received from.
    """
    make = getattr(broker, "consumer", None)
    if not callable(make):
        rule = "must be a broker that messages can be received from, such as Kafka(…, group=…) of holdfast.sinks"
        raise ConfigError("broker", rule, broker)
    consumer = make()
    if not isinstance(consumer, Consumer):
        raise ConfigError("broker", "its consumer() must have open, consume, acknowledge and close", consumer)
    return consumer
