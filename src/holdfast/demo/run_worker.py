"""One worker process of `holdfast demo --runs`, with all it needs in its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.demo import crew
from holdfast.demo.runs import BANK, URL, application


def main() -> int:
    return crew.serve(application(os.environ[URL], Path(os.environ[BANK])), poll=0.1, drain=5)


if __name__ == "__main__":
    sys.exit(main())
