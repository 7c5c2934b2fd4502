"""A worker process, started as a user starts it: `holdfast worker tests.histories.app:hf`."""

import os
import shlex

from holdfast.cli import main
from holdfast.demo.crew import NAME, end_with_employer
from tests.histories.settings import OPTIONS

if __name__ == "__main__":
    end_with_employer()
    main(["worker", "tests.histories.app:hf", "--name", os.environ[NAME], *shlex.split(os.environ[OPTIONS])])
