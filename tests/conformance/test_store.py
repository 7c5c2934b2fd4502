"""The shipped conformance suite, on every store of our own and in both colours."""

from holdfast.testing.suite import *  # noqa: F403
