"""Every promise of a store as a test: what a database must keep, whatever its SQL and in whatever colour.

Import it into a test module beside the fixtures of `holdfast.testing.fixtures` and a `store` fixture.
"""

from holdfast.testing.suite_batches import *  # noqa: F403
from holdfast.testing.suite_chains import *  # noqa: F403
from holdfast.testing.suite_changes import *  # noqa: F403
from holdfast.testing.suite_children import *  # noqa: F403
from holdfast.testing.suite_claim import *  # noqa: F403
from holdfast.testing.suite_control import *  # noqa: F403
from holdfast.testing.suite_debounce import *  # noqa: F403
from holdfast.testing.suite_declarations import *  # noqa: F403
from holdfast.testing.suite_door import *  # noqa: F403
from holdfast.testing.suite_drain import *  # noqa: F403
from holdfast.testing.suite_enqueue import *  # noqa: F403
from holdfast.testing.suite_expiry import *  # noqa: F403
from holdfast.testing.suite_inbox import *  # noqa: F403
from holdfast.testing.suite_journals import *  # noqa: F403
from holdfast.testing.suite_keys import *  # noqa: F403
from holdfast.testing.suite_limits import *  # noqa: F403
from holdfast.testing.suite_lines import *  # noqa: F403
from holdfast.testing.suite_order import *  # noqa: F403
from holdfast.testing.suite_outbox import *  # noqa: F403
from holdfast.testing.suite_park import *  # noqa: F403
from holdfast.testing.suite_pauses import *  # noqa: F403
from holdfast.testing.suite_reap import *  # noqa: F403
from holdfast.testing.suite_remote import *  # noqa: F403
from holdfast.testing.suite_repeat import *  # noqa: F403
from holdfast.testing.suite_results import *  # noqa: F403
from holdfast.testing.suite_runs import *  # noqa: F403
from holdfast.testing.suite_schedules import *  # noqa: F403
from holdfast.testing.suite_settle import *  # noqa: F403
from holdfast.testing.suite_stats import *  # noqa: F403
from holdfast.testing.suite_upkeep import *  # noqa: F403
