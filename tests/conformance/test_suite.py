"""The suite itself: nothing in it is lost on the way to those who import it."""

import importlib

from holdfast.testing import plugin, suite


def test_every_promise_of_every_topic_is_in_the_suite() -> None:
    topics = [importlib.import_module(f"holdfast.testing.suite_{topic}") for topic in plugin.TOPICS]
    promises = [
        (name, promise) for topic in topics for name, promise in vars(topic).items() if name.startswith("test_")
    ]
    assert len(promises) > 100
    assert [name for name, promise in promises if getattr(suite, name, None) is not promise] == []
