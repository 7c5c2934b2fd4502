"""A worker that dies between the commit of a batch and its acknowledgement: `python -m tests.inbox.child`.

The environment says where: HOLDFAST_URL, NATS_URL and SUBJECT. What it has done by then is in the database.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from holdfast import Holdfast
from holdfast.inbox import Consumer, Incoming
from holdfast.sinks import Nats
from holdfast.values.cloudevents import CloudEvent


class Deadly:
    """A broker whose consumer kills the process instead of acknowledging."""

    def __init__(self, broker: Nats) -> None:
        self.broker = broker

    def consumer(self) -> Consumer:
        consumer: Any = self.broker.consumer()

        async def die(messages: Sequence[Incoming]) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        consumer.acknowledge = die
        return consumer  # type: ignore[no-any-return]


def main() -> None:
    hf = Holdfast()

    @hf.receive(Deadly(Nats(os.environ["NATS_URL"], subject=os.environ["SUBJECT"], group="shop")))
    async def paid(event: CloudEvent) -> None: ...

    asyncio.run(hf.worker().run())


if __name__ == "__main__":
    main()
