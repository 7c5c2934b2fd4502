"""Shards that did not answer of late."""

from holdfast.store.avoiding import Avoided


class Looked(float):
    """A moment at which another thread remembers one more shard, in the middle of a look."""

    avoided: Avoided

    def __gt__(self, other: float) -> bool:
        self.avoided.add(2)
        return super().__gt__(other)


def test_a_shard_falls_silent_while_another_thread_chooses_one() -> None:
    avoided = Avoided()
    moment = Looked("inf")
    moment.avoided = avoided
    avoided._until[1] = moment
    assert avoided.without([0, 1]) == [0]


def test_where_all_are_silent_each_may_be_chosen() -> None:
    avoided = Avoided()
    avoided.add(0)
    assert (avoided.without([0, 1]), avoided.without([0])) == ([1], [0])
