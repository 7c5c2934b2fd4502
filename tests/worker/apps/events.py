"""An application with a route, whose events are appended to a file, for processes of `holdfast relay`."""

import os
from pathlib import Path

from holdfast import Holdfast
from holdfast.sinks import Function, Message

hf = Holdfast()


def append(message: Message) -> None:
    with Path(os.environ["EVENTS_FILE"]).open("a") as file:
        file.write(f"{message.event.id}\n")


hf.route("order.*", to=Function(append), name="orders")
