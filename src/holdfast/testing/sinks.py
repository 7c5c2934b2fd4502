"""What a test of a sink stands on: the receiver, as the test sees it, and messages to send.

To hold a sink of your own against the promises, say what its receiver is and import the tests (pytest is needed):

    # test_my_sink.py
    from holdfast.testing.sink_suite import *

    class MyReceiver(Receiver):
        def sink(self): return MySink("…")
        async def received(self): return [await …]

    @pytest.fixture
    def receiver():
        yield MyReceiver(…)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from holdfast.sinks import Message, Sink
from holdfast.values.cloudevents import CloudEvent

TIME = datetime(2026, 3, 1, 12, 30, 45, 123_000, tzinfo=UTC)
_numbers = itertools.count(1)


class Receiver:
    """The other side of a sink in a test: a broker, a server, a table. What it cannot do stays as it is here.

    secrets: texts that nobody may read in a repr or an error. finds_out: whether the sink itself asks again after an
    answer that was lost, so that it may know the outcome. tells_losses: whether the sink tells a connection that was
    lost from an answer that did not come (`Failed.lost`), so that an outage uses no attempt.
    """

    secrets: Sequence[str] = ()
    finds_out = False
    tells_losses = False

    def sink(self) -> Sink:
        """Make a sink that sends to this receiver; short time-outs keep the tests short."""
        raise NotImplementedError

    async def received(self) -> Sequence[CloudEvent]:
        """Return what has arrived, in the order of arrival; of one key in its order at least."""
        raise NotImplementedError

    def bad(self) -> Message | None:
        """Make a message that can never be taken, with the key "bad", or None: such as one that is too large."""
        return None

    def outage(self) -> AbstractContextManager[object] | None:
        """Give a context in which nobody answers at the receiver's address; after it all is as before."""
        return None

    def lost_answers(self) -> AbstractContextManager[object] | None:
        """Give a context in which what is sent arrives, and the connection is cut before the answer comes."""
        return None


def message(key: str | None = None, data: Any = None, **attributes: Any) -> Message:
    """Make a message with an id of its own."""
    number = next(_numbers)
    usual: dict[str, Any] = {"id": f"event-{number}-{id(_numbers):x}", "source": "/tests", "type": "test.happened"}
    usual["data"] = {"n": number} if data is None else data
    return Message(CloudEvent(**usual | attributes), key)


def full_message(key: str | None = "order:1") -> Message:
    """Make a message with every attribute there is, in characters that protocols stumble over."""
    return message(
        key,
        {"text": 'Größe 10 % "quoted"', "list": [1, 2.5, None, True]},
        subject="order/1 ü",
        time=TIME,
        dataschema="https://example.org/schema?v=1",
        extensions={
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "partitionkey": "order:1",
        },
    )
