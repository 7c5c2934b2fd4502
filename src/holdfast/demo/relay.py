"""One relay process of the outbox demo: `python -m holdfast.demo.relay`, with everything in its environment."""

from __future__ import annotations

import os
import sys

from holdfast.demo import crew
from holdfast.demo.outbox import URL, application


def main() -> int:
    return crew.serve(application(os.environ[URL]), concurrency=2, drain=5, poll=0.2)


if __name__ == "__main__":
    sys.exit(main())
