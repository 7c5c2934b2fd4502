"""The races of lines, chains and schedules on MySQL, whose locks are not always MariaDB's."""

import pytest

from tests.races.test_chain_races import *  # noqa: F403
from tests.races.test_line_races import *  # noqa: F403
from tests.races.test_schedule_races import *  # noqa: F403

pytestmark = pytest.mark.parametrize("race_url", ["mysql"], indirect=True)
