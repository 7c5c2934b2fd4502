"""The races of `tests/races/test_schedule_races.py` on a schema of a Citus cluster."""

import pytest

from tests.races.test_schedule_races import *  # noqa: F403

pytestmark = pytest.mark.citus
