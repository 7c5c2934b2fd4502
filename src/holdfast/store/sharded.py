"""Several stores as one: the shards of an application.

A shard is a whole store, and every transaction stays in one of them. What is here only finds the right one: for a key
by the map, for an id by what it says, and for people by asking all of them and making one answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.errors import (
    ConfigError,
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    HoldfastError,
    JobNotFound,
    RunNotFound,
    ScheduleNotFound,
)
from holdfast.flow import Flow
from holdfast.placing import Every, Found, InTurn, Place, Placed
from holdfast.store import shard_map
from holdfast.store.avoiding import Avoided, Looks
from holdfast.store.shard_map import StoredMap
from holdfast.store.store import Store
from holdfast.store.trips import Asked, Trips, atried, tried, value_of
from holdfast.values.ids import bucket, new_id, new_ids
from holdfast.values.rows import Lease, NewJob
from holdfast.values.shards import ShardMap, root_of, stamp_of, stamped
from holdfast.values.texts import KEY_LENGTH, text
from holdfast.values.urls import redact

T = TypeVar("T")
# How old the map may be that an enqueue goes by.
FRESH_SECONDS = 2.0
# For how long others go by the map of before, while one asks for a newer one; then another shard is asked.
ASKED_SECONDS = 1.0
_NOT_FOUND = (JobNotFound, RunNotFound, ScheduleNotFound)
_AWAY = (DatabaseUnavailable, DatabaseBusy)


class Shards(Store):
    """The shards of an application, by their numbers; to what takes one store they look like one.

    `in_one`: whether all jobs of a queue belong to one shard, because it has limits.
    """

    def __init__(self, stores: Sequence[Store], *, one_place: bool) -> None:
        first = stores[0]
        super().__init__(first.url, first.options)
        self.stores = list(stores)
        self.make_files(False)
        # Whether a connection to one of them reaches them all, as with schemas of one database.
        self.one_place = one_place
        self.in_one: Callable[[str], bool] = lambda queue: False
        # Hears of a shard that did not answer, where others did.
        self.missing: Callable[[int, Exception], None] = lambda number, error: None
        self._map: ShardMap | None = None
        self.avoided = Avoided()
        # Those that have said which shard they are, and whom to ask next.
        self._asked: set[int] = set()
        self._looks = Looks(len(stores))
        # From when on the map counts as fresh; when it was read last.
        self._read_at = 0.0
        self._heard_at = 0.0
        # When the map was stored that is known, by the monotonic clock.
        self._stored_at = 0.0

    def __repr__(self) -> str:
        return f"<Shards {[redact(store.url) for store in self.stores]}>"

    # As a store

    def run(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        return self.go(self._placed(work, Asked(self, work, again)))

    def run_once(self, work: Flow[T]) -> T:
        return self.go(self._placed(work, Asked(self, work, once=True)))

    async def arun(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        return await self.ago(self._placed(work, Asked(self, work, again)))

    def arun_once(self, work: Flow[T]) -> Coroutine[Any, Any, T]:
        return self.ago(self._placed(work, Asked(self, work, once=True)))

    def run_in(self, tx: Any, work: Flow[T], what: str = "the job") -> T:
        return self.go(self._placed(work, Asked(self, work, tx=tx, what=what)))

    async def arun_in(self, tx: Any, work: Flow[T], what: str = "the job") -> T:
        return await self.ago(self._placed(work, Asked(self, work, tx=tx, what=what)))

    def check(self) -> None:
        for store in self.stores:
            store.check()

    def close(self) -> None:
        """Close the connections to every shard."""
        for store in self.stores:
            store.close()
        super().close()

    async def aclose(self) -> None:
        """The async twin of `close`."""
        for store in self.stores:
            await store.aclose()
        await super().aclose()

    def make_files(self, allowed: bool) -> None:
        """Say whether files of shards that are not there are made when they are opened; see `founding`."""
        for store in self.stores:
            store.makes_file = allowed

    def clock_at(self, now: Any) -> None:
        """Set the clock of every shard, for tests."""
        for store in self.stores:
            store.now = now

    # Which shard

    def within(self, tx: Any) -> Trips[Within]:
        """Find out which shards something may go to: any, or those that a transaction of the caller's can reach."""
        known = yield from self._fresh()
        if tx is None or self.one_place:
            return Within(self, known, range(len(self.stores)))
        [found] = yield [Asked(self.stores[0], shard_map.read(), tx=tx, what="what is enqueued in it")]
        stored: StoredMap | None = value_of(found)
        if stored is None:
            raise Conflict(
                "The transaction of tx= is on a database that is no shard of this application. Open it on one of them; "
                "`holdfast shards list` names them."
            )
        return Within(self, known, [stored.number])

    def of(self, number: int) -> Store:
        """Return a shard by its number. Raises: ConfigError for one that the application does not name."""
        if number >= len(self.stores):
            rule = (
                f"this application lists {len(self.stores)} of them, and what is asked for belongs to shard {number}: "
                "deploy it with the whole list, or check the id"
            )
            raise ConfigError("shards", rule, number)
        return self.stores[number]

    @property
    def known(self) -> ShardMap | None:
        """The newest map that was read; None before the first."""
        return self._map

    @property
    def known_for(self) -> float:
        """For how many seconds the map has been as it is."""
        return time.monotonic() - self._stored_at

    def number_of(self, store: Store) -> int | None:
        """Tell which shard a store is."""
        return next((number for number, one in enumerate(self.stores) if one is store), None)

    def set_up(self) -> Trips[ShardMap]:
        """Tell each shard its number, and give those that have no map the one that the first has.

        A shard that comes to others gets its number and no keys: `holdfast shards add` gives it some.
        Raises: Conflict for a shard that is another one.
        """
        begun = ShardMap.first(len(self.stores), self.options.buckets)
        [there, used] = yield [
            Asked(self.stores[0], shard_map.read(), once=True),
            Asked(self.stores[0], shard_map.in_use(), once=True),
        ]
        if value_of(there) is None and value_of(used):
            # It was the only one until now: its keys have their lines here, and go elsewhere by `shards add`.
            begun = ShardMap(1, (0,) * self.options.buckets)
        for number, store in enumerate(self.stores):
            [answer] = yield [Asked(store, shard_map.place(number, begun))]
            begun = self.learn(number, value_of(answer))
        return begun

    def map(self) -> Trips[ShardMap]:
        """Read the map anew."""
        self._read_at = 0.0
        return (yield from self._fresh())

    def _fresh(self) -> Trips[ShardMap]:
        began = time.monotonic()
        if self._map is not None and began - self._read_at < FRESH_SECONDS:
            return self._map
        likely = self._looks.likely(self.avoided)
        if self._map is not None:
            # If that one is silent, others need not wait for it: they soon ask another.
            self._looks.next, self._read_at = likely[1 % len(likely)], began - FRESH_SECONDS + ASKED_SECONDS
        away: Exception | None = None
        # At first all are asked which shard they are; later one that answers has the map.
        for part in ([likely] if self._map is None else []) + [[number] for number in likely]:
            with self._looks.at(part):
                answers = yield [Asked(self.stores[number], shard_map.read(), once=True) for number in part]
            told = [(number, one) for number, one in zip(part, answers, strict=True) if not isinstance(one, _AWAY)]
            for number in {*part} - {number for number, _ in told}:
                self.avoided.add(number)
            known = [self.learn(number, value_of(one)) for number, one in told]
            if known:
                self._looks.next = told[0][0]
                return known[-1]
            if self._map is not None and self._heard_at > began:
                return self._map
            away = away or answers[0]
        if self._map is not None:
            return self._map
        raise away or AssertionError

    def sure_of(self, number: int) -> Trips[Store]:
        """Return a shard for new work; one that did not answer before is asked now which it is. Raises: as `learn`."""
        store = self.of(number)
        if number not in self._asked:
            [answer] = yield [Asked(store, shard_map.read())]
            self.learn(number, value_of(answer))
        return store

    def learn(self, number: int, stored: StoredMap | None) -> ShardMap:
        """Take in the map that a shard has. Raises: Conflict where it is another shard, or none."""
        where = redact(self.stores[number].url)
        if stored is None:
            raise Conflict(f"Shard {number} ({where}) is not set up as one: run `holdfast migrate apply`.")
        if stored.number != number:
            raise Conflict(
                f"The store that is named as shard {number} ({where}) says that it is shard {stored.number}. Keep the "
                "order in which the shards were named first: a key belongs to a shard by its number."
            )
        if stored.map.buckets != self.options.buckets:
            raise ConfigError("buckets", f"the shards were made with {stored.map.buckets}", self.options.buckets)
        if self._map is None or stored.map.version > self._map.version:
            self._map, self._stored_at = stored.map, time.monotonic() - stored.age.total_seconds()
        self._asked.add(number)
        self._read_at = self._heard_at = time.monotonic()
        return self._map

    def check_next(self, number: int, held: Lease, job: NewJob) -> None:
        """Raises: ConfigError for a job that is to continue a held one of a shard, and belongs to another shard.

        One that goes by the same name as the held one stays beside it, also if another has that name by now.
        """
        place, known = self._goes_by(job), self._map
        if place is None or place == self._goes_by(held) or known is None:
            return
        part = bucket(place, known.buckets)
        # While a bucket moves, jobs in its new shard wait for what is left in the old one.
        if number not in (known.owners[part], known.moving.get(part)):
            rule = (
                f"belongs to shard {known.owners[part]}, and what continues a job is added in its transaction, in "
                f"shard {number}: have the handler enqueue it, with an idempotency_key, or give both jobs the same key"
            )
            raise ConfigError("queue" if self.in_one(job.queue) else "key", rule, place)

    def _goes_by(self, job: Lease | NewJob) -> str | None:
        return job.queue if self.in_one(job.queue) else job.key

    def is_over(self, number: int) -> bool:
        """Tell whether a shard was drained, so that nothing new is there: nobody needs to wait for it."""
        known = self._map
        return (
            known is not None
            and number in known.closed
            and number not in known.owners
            and number not in known.moving.values()
        )

    def order(self, known: ShardMap, id: str) -> list[int]:
        """List the shards in which to look for an id, the likeliest first."""
        root = root_of(id)
        named = stamp_of(root)
        part = bucket(root, known.buckets)
        likely = [known.owners[part], known.moving.get(part, 0), 0] if named is None else [named]
        there = range(len(self.stores))
        return [number for number in dict.fromkeys([*likely, *there]) if number in there]

    # How work is spread

    def _placed(self, work: Flow[T], asked: Asked) -> Trips[T]:
        place: Place = work.place if isinstance(work, Placed) else 0
        if isinstance(place, int):
            [answer] = yield [asked._replace(store=self.of(place))]
            return cast(T, value_of(answer))
        if isinstance(place, Found):
            return cast(T, (yield from self._found(place, asked)))
        if isinstance(place, InTurn):
            return cast(T, (yield from self._in_turn(place, asked)))
        return cast(T, (yield from self._every(place, asked)))

    def _found(self, place: Found, asked: Asked) -> Trips[Any]:
        known = yield from self._fresh()
        numbers = self.order(known, place.id)
        if asked.tx is not None:
            reach = (yield from self.within(asked.tx)).numbers
            numbers = [number for number in numbers if number in reach]
        missing: HoldfastError | None = None
        away: HoldfastError | None = None
        for number in numbers:
            [answer] = yield [asked._replace(store=self.stores[number])]
            if isinstance(answer, RunNotFound) and answer.workflows:
                raise answer
            if isinstance(answer, _NOT_FOUND):
                missing = missing or answer
            elif isinstance(answer, _AWAY) and number != stamp_of(place.id):
                away = answer
            else:
                return value_of(answer)
        likely = self.order(known, place.id)[0]
        if asked.tx is not None and likely not in numbers:
            rule = (
                f"is on shard {numbers[0]}, and {place.id} belongs to shard {likely}: open it there, or leave tx= out"
            )
            raise ConfigError("tx", rule, asked.what)
        raise away or missing or AssertionError

    def _in_turn(self, place: InTurn[Any], asked: Asked) -> Trips[Any]:
        answers: list[Any] = []
        left = place.limit
        for number in (yield from self._meant(place.ids, asked)):
            [answer] = yield [asked._replace(store=self.stores[number], work=place.make(left))]
            if isinstance(answer, _AWAY) and self.is_over(number):
                continue
            answers.append(value_of(answer))
            left -= place.size(answers[-1])
            if left <= 0:
                break
        return place.merge(answers)

    def _meant(self, ids: Sequence[str], asked: Asked) -> Trips[Sequence[int]]:
        """Tell which shards something is about: those that its ids name, or all. Raises: ConfigError for a `tx`."""
        there = range(len(self.stores))
        named = {stamp_of(one) for one in ids}
        numbers = [number for number in there if number in named] if named and None not in named else list(there)
        if asked.tx is not None and not self.one_place:
            reach = (yield from self.within(asked.tx)).numbers
            if not set(numbers) <= set(reach):
                rule = "cannot be in a transaction of yours: it is about several shards, which are several databases"
                raise ConfigError("tx", rule, asked.what)
        return numbers or list(there)

    def _every(self, place: Every[Any], asked: Asked) -> Trips[Any]:
        numbers = yield from self._meant(place.ids, asked)
        if place.instead is not None:
            asked = asked._replace(work=place.instead)
        answers = yield [asked._replace(store=self.stores[number]) for number in numbers]
        here = [one for one in answers if not isinstance(one, _AWAY)]
        needed = [
            (number, one)
            for number, one in zip(numbers, answers, strict=True)
            if isinstance(one, _AWAY) and not (place.lenient or self.is_over(number))
        ]
        if not here:
            raise next(one for one in answers if isinstance(one, _AWAY))
        if needed:
            number, missed = needed[0]
            done = [n for n, one in zip(numbers, answers, strict=True) if not isinstance(one, HoldfastError)]
            said = place.without(f"shard {number} ({redact(self.stores[number].url)})", done)
            missed.args = (f"{said[0].upper()}{said[1:]}. {missed}",)
            raise missed
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, _AWAY):
                self.missing(number, answer)
        return place.merge([value_of(one) for one in here])

    # The two colours

    def go(self, trips: Trips[T]) -> T:
        """Run trips on this thread."""
        try:
            asked = next(trips)
            while True:
                asked = trips.send([tried(one) for one in asked])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            trips.close()

    async def ago(self, trips: Trips[T]) -> T:
        """Run trips on the event loop, those that go together side by side."""
        try:
            asked = next(trips)
            while True:
                if len(asked) == 1 or asked[0].tx is not None:
                    # In one transaction, one after the other.
                    answers = [await atried(one) for one in asked]
                else:
                    answers = await asyncio.gather(*map(atried, asked))
                asked = trips.send(answers)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            trips.close()


class Within:
    """Where new work may go: what the map says, and which shards can be reached."""

    def __init__(self, shards: Shards, known: ShardMap, numbers: Iterable[int]) -> None:
        self._shards = shards
        self._map = known
        self._with_keys = set(known.owners)
        self.numbers = list(numbers)

    def choose(self, key: str) -> int:
        """Find the shard that a key belongs to. Raises: ConfigError."""
        return self._one({text(key, "key", KEY_LENGTH): self._owner(key)})

    def new_id(self, like: NewJob) -> str:
        """Draw the id of a job, which says the shard that it belongs to. Raises: ConfigError, as `_one` says."""
        return stamped(new_id(), self._one(self._wanted(like)))

    def is_free(self, like: NewJob) -> bool:
        """Tell whether a job may go anywhere."""
        return not self._wanted(like)

    def new_ids(self, likes: Sequence[NewJob], beside: Sequence[str] = ()) -> list[str]:
        """Draw the ids of jobs that are added at once, beside those of these ids. Raises: as `new_id`."""
        wanted = _named(beside)
        for like in likes:
            wanted |= self._wanted(like)
        number = self._one(wanted)
        return [stamped(one, number) for one in new_ids(len(likes))]

    def sorted(self, given: Iterable[T], like: Callable[[T], NewJob]) -> list[list[T]]:
        """Sort what belongs to jobs by their shards; what may go anywhere is with the largest part."""
        parts: dict[int, list[T]] = {}
        anywhere: list[T] = []
        for one in given:
            wanted = self._wanted(like(one))
            (parts.setdefault(self._one(wanted), []) if wanted else anywhere).append(one)
        if anywhere:
            (max(parts.values(), key=len) if parts else parts.setdefault(0, [])).extend(anywhere)
        return list(parts.values())

    def _wanted(self, like: NewJob) -> dict[str, int]:
        """Tell what binds a job to a shard, and to which."""
        wanted = _named(like.after)
        if self._shards.in_one(like.queue):
            wanted[like.queue] = self._owner(like.queue)
            return wanted
        said = like.key or like.debounce or like.unique or like.idempotency_key
        if said is not None:
            wanted[said] = self._owner(said)
        return wanted

    def _owner(self, key: str) -> int:
        return self._map.owners[bucket(key, self._map.buckets)]

    def _one(self, wanted: Mapping[str, int]) -> int:
        places = sorted(set(wanted.values()))
        if not places:
            return self._any()
        if len(places) > 1:
            shown = ", ".join(f"{one!r} in shard {number}" for one, number in list(wanted.items())[:3])
            rule = "what is added at once is one transaction, and these belong to several shards"
            raise ConfigError(
                "key",
                f"{rule} ({shown}). Add them apart, as hf.by_shard(…) sorts jobs, or let one's handler add the other",
                f"{len(wanted)} of them",
            )
        [number] = places
        self._shards.of(number)
        if number not in self.numbers:
            first = next(iter(wanted))
            rule = (
                f"belongs to shard {number}, and the transaction of tx= is on shard {self.numbers[0]}: open it on the "
                "shard that hf.shard_of(key) names, or enqueue a job without a key there that does this one's enqueue"
            )
            raise ConfigError("key", rule, first)
        return number

    def _any(self) -> int:
        # Those with keys: one that is new may not have its tables yet. A handler of a shard that is being drained goes
        # on there, with its transaction.
        open = [number for number in self._map.open(self.numbers) if number in self._with_keys] or self.numbers
        open = self._shards.avoided.without(open)
        # As good as by chance, and without its cost: the last digits of an id are random.
        return open[int(new_id()[-6:], 16) % len(open)]


def _named(ids: Iterable[str]) -> dict[str, int]:
    """Tell which shards jobs are in; what says nothing of that is where all was before there were shards."""
    return {f"job {one}": stamp_of(one) or 0 for one in ids}
