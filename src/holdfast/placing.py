"""Where work belongs among the shards of an application. With one store, nobody asks.

A flow that is `Placed` says so; one that is not runs on the first shard. Inside another flow that counts for nothing:
where the other one belongs decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from holdfast.flow import Flow
from holdfast.values.words import shards_named

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Found:
    """Where something is: a job, a batch or a run, by its id; each shard is asked until one knows it.

    The one that the id names is asked first, or the one that has its bucket.
    """

    id: str


@dataclass(frozen=True, slots=True)
class Every(Generic[T]):
    """On every shard; `merge` makes one answer of theirs, which come in the order of the shards.

    lenient: the answers of those shards will do that can be reached. ids: what it is about; where each of them names a
    shard, no other is asked. instead: what each of several shards is asked, where one alone would be asked for less.
    otherwise: what there is to say where a shard that is needed does not answer and others do.
    """

    merge: Callable[[Sequence[T]], T]
    lenient: bool = True
    ids: Sequence[str] = ()
    instead: Flow[T] | None = None
    otherwise: Literal["", "stored", "nothing"] = ""

    def without(self, where: str, done: Sequence[int]) -> str:
        """Say what came of it where a shard does not answer, and these have answered."""
        if not done or not self.otherwise:
            return f"{where} does not answer"
        if self.otherwise == "nothing":
            return f"Nothing was done: {where} does not answer"
        return f"Stored in {shards_named(done)}; {where} does not answer: say the same again when it is back"


@dataclass(frozen=True, slots=True)
class InTurn(Generic[T]):
    """On one shard after the other, until `limit` is used up: `make` makes the work for what is left of it.

    size: how much of the limit an answer has used. ids: as for `Every`.
    """

    make: Callable[[int], Flow[T]]
    limit: int
    size: Callable[[T], int]
    merge: Callable[[Sequence[T]], T]
    ids: Sequence[str] = ()


# A number: on that shard.
Place = int | Found | Every[Any] | InTurn[Any]


class Placed(Flow[T]):
    """Work that belongs somewhere."""

    __slots__ = ("place",)

    def __init__(self, work: Flow[T], place: Place) -> None:
        super().__init__(work.name, work.start)
        self.place = place


def on_every(
    merge: Callable[[Sequence[T]], T], *, lenient: bool = True, stores: bool = False
) -> Callable[[Callable[P, Flow[T]]], Callable[P, Flow[T]]]:
    """Say of a maker of flows that they belong on every shard; `stores`: each keeps what is said, and all of them must.

    lenient: as for `Every`.
    """
    place = Every(merge, lenient and not stores, otherwise="stored" if stores else "")

    def decorate(make: Callable[P, Flow[T]]) -> Callable[P, Flow[T]]:
        @wraps(make)
        def placed(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
            return Placed(make(*args, **kwargs), place)

        return placed

    return decorate


def placed_by(place: Callable[P, Place]) -> Callable[[Callable[P, Flow[T]]], Callable[P, Flow[T]]]:
    """Say of a maker of flows where they belong; `place` takes the same arguments."""

    def decorate(make: Callable[P, Flow[T]]) -> Callable[P, Flow[T]]:
        @wraps(make)
        def placed(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
            return Placed(make(*args, **kwargs), place(*args, **kwargs))

        return placed

    return decorate


def where_id_is(make: Callable[P, Flow[T]]) -> Callable[P, Flow[T]]:
    """Say of a maker of flows that they belong where the thing is whose id is the first argument."""

    @wraps(make)
    def placed(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        work = make(*args, **kwargs)
        return Placed(work, Found(str(args[0]))) if args else work

    return placed
