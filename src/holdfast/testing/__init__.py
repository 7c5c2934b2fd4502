"""What is shipped for tests: helpers for an application's own, and the suite that every store must pass.

For an application: `inline` runs due jobs in the calling test and says what was enqueued, `plugin` has that as fixtures
of pytest, `isolation` gives a test jobs and a clock of its own, `django_tests`
finds the databases of Django's test runner, and `history` and `rules` check what several
processes did. For a store: the conformance suite (`suite`)
and what it stands on (`clock`, `look`, `make`, `fixtures`). For a sink: `sink_suite`,
which stands on `sinks`. Tests of Holdfast alone belong to the folder `tests`.

To run it on a store of your own, say what a fresh store is and import the tests (pytest is needed):

    # conftest.py
    from holdfast.testing.fixtures import clock, colour, do, look

    @pytest.fixture
    def store():
        store = Store("postgresql://…")
        …                                # migrated and empty
        yield store
        store.close()

    # test_store.py
    from holdfast.testing.suite import *
"""

from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Live, Look, Over
from holdfast.testing.make import empty, failure, new_job

__all__ = ["Clock", "Do", "Live", "Look", "Over", "empty", "failure", "new_job"]
