"""The conformance suite that every store must pass, and what it stands on.

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
