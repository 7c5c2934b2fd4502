"""The shipped conformance suite on a schema of a Citus cluster, in both colours."""

import pytest

from holdfast.testing.suite import *  # noqa: F403

pytestmark = pytest.mark.citus
