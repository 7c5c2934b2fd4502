"""One worker process of the demo: `python -m holdfast.demo.worker`, with the database in its environment."""

from __future__ import annotations

import os
import sys

from holdfast.demo import crew
from holdfast.demo.shop import CONCURRENCY, MAIL_SECONDS, PREFIX, URL, Shop


def main() -> int:
    shop = Shop(os.environ[URL], os.environ[PREFIX], float(os.environ[MAIL_SECONDS]))
    return crew.serve(shop.holdfast, concurrency=CONCURRENCY, drain=5)


if __name__ == "__main__":
    sys.exit(main())
