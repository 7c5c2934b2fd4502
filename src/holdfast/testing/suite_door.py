"""The door out: what follows a job's end happens in the same transaction, once, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.errors import ConfigError, LeaseLost, UnknownFollowers
from holdfast.flow import Flow, Steps, ask, flow
from holdfast.life import door
from holdfast.life.door import Left
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Finish, Lease, Park, PutBack

# Bits that no surface of Holdfast has.
BIT, OTHER_BIT, UNKNOWN_BIT = door.LAST_BIT, door.LAST_BIT >> 1, door.LAST_BIT >> 2
Told = Callable[[], list[tuple[str, str]]]


class Crash(Exception):
    """A process that dies here."""


def note(left: Sequence[Left], action: str = "followed") -> Steps[None]:
    """Write a line for each job that left, as a consequence does."""
    batch: dict[str, list[Any]] = {
        "action": [action] * len(left),
        "job_id": [row.id for row in left],
        "actor": [row.how for row in left],
        "detail": ["{}"] * len(left),
    }
    yield from ask("audit_add", batch=batch)


@pytest.fixture
def told(do: Do) -> Iterator[Told]:
    """What followed so far: job and how it left, in the order of ids."""
    door.attach(BIT, note)
    yield lambda: sorted(
        (line.job_id or "", line.actor or "") for line in do(admin.audit()) if line.action == "followed"
    )
    door.detach(BIT)


def followed(do: Do, count: int = 1, **fields: Any) -> list[Lease]:
    """Enqueue jobs, claim them, and give them a follower after that."""
    new = [new_job(**fields) for _ in range(count)]
    do(jobs.enqueue_many(new))
    leases = do(jobs.claim("mail", limit=count))
    assert do(jobs.follow([job.id for job in new], BIT)) == {job.id for job in new}
    return leases


def finish(lease: Lease, outcome: Any = "done", keep: bool = True) -> Finish:
    return Finish(lease.id, lease.fence, outcome, '"r"' if outcome == "done" else None, keep=keep)


EXITS: dict[str, tuple[str, Callable[[Lease], Flow[Any]]]] = {
    "settle-done": ("done", lambda lease: jobs.settle([finish(lease)])),
    "settle-dropped": ("done", lambda lease: jobs.settle([finish(lease, keep=False)])),
    "settle-dead": ("dead", lambda lease: jobs.settle([finish(lease, "dead")])),
    "settle-cancelled": ("cancelled", lambda lease: jobs.settle([finish(lease, "cancelled")])),
    "settle-returned": ("returned", lambda lease: jobs.settle([PutBack(lease.id, lease.fence, 0, 0, failure())])),
    "settle-parked": ("parked", lambda lease: jobs.settle([Park(lease.id, lease.fence, "children")])),
    "complete": ("done", lambda lease: jobs.complete(lease, '"r"')),
    "complete-and-drop": ("done", lambda lease: jobs.complete(lease, keep=False)),
    "kill": ("dead", lambda lease: jobs.kill(lease, failure(), "group")),
    "cancel": ("cancelled", jobs.cancel),
    "retry": ("returned", lambda lease: jobs.retry(lease, 0, failure())),
    "snooze": ("returned", lambda lease: jobs.snooze(lease, 0)),
    "release": ("returned", jobs.release),
    "park": ("parked", lambda lease: jobs.park(lease, "children")),
    "strays": ("returned", lambda lease: jobs.release_strays("worker", [])),
}
SETTLED_EXITS = [name for name in EXITS if name.startswith("settle")]

every_exit = pytest.mark.parametrize("exit", EXITS)


@every_exit
def test_whatever_ends_a_lease_passes_the_door_once(do: Do, clock: Clock, told: Told, exit: str) -> None:
    [lease] = followed(do)
    how, work = EXITS[exit]
    do(work(lease))
    assert told() == [(lease.job_id, how)]


@every_exit
def test_a_plain_job_passes_no_door(do: Do, clock: Clock, told: Told, exit: str) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    do(EXITS[exit][1](lease))
    assert told() == []


@pytest.mark.parametrize("exit", SETTLED_EXITS)
def test_a_settle_that_is_repeated_is_followed_once(do: Do, clock: Clock, look: Look, told: Told, exit: str) -> None:
    [lease] = followed(do)
    how, work = EXITS[exit]
    first = do(work(lease))
    before = (look.live(), look.over())
    assert do(work(lease)) == first == jobs.Settled({lease.job_id}, set())
    assert (look.live(), look.over()) == before
    assert told() == [(lease.job_id, how)]


@every_exit
def test_nothing_follows_a_lease_that_was_lost(do: Do, clock: Clock, look: Look, told: Told, exit: str) -> None:
    [lease] = followed(do)
    clock.pass_lease(lease)
    do(jobs.reap(backoff=lambda kind, attempt: 0))
    do(jobs.claim("mail", limit=1, worker="another"))
    before, after_the_reap = look.live(), told()
    assert after_the_reap == [(lease.job_id, "returned")]
    if exit in SETTLED_EXITS:
        assert do(EXITS[exit][1](lease)).lost == {lease.job_id}
    elif exit == "strays":
        assert do(EXITS[exit][1](lease)) == 0
    else:
        with pytest.raises(LeaseLost):
            do(EXITS[exit][1](lease))
    assert (look.live(), told()) == (before, after_the_reap)


@flow
def dying(work: Flow[Any], after: int) -> Steps[Any]:
    """Run a flow, and die after that many of its statements."""
    steps = work.start()
    rows: Any = None
    for _ in range(after):
        rows = yield steps.send(rows)
    steps.close()
    raise Crash


def statements(work: Flow[Any]) -> Flow[int]:
    """Run a flow and count its statements."""

    @flow
    def counted() -> Steps[int]:
        steps, count = work.start(), 0
        rows: Any = None
        try:
            while True:
                rows = yield steps.send(rows)
                count += 1
        except StopIteration:
            return count

    return counted()


@every_exit
def test_a_crash_after_any_statement_leaves_all_or_nothing_and_a_repeat_ends_it_once(
    do: Do, clock: Clock, look: Look, told: Told, exit: str
) -> None:
    how, work = EXITS[exit]
    [first] = followed(do)
    count = do(statements(work(first)))
    assert count >= 3
    for after in range(1, count + 1):
        for job in look.live():
            do(admin.cancel(job.id, None))
        seen = told()
        [lease] = followed(do)
        before = (look.live(), look.over())
        with pytest.raises(Crash):
            do(dying(work(lease), after))
        assert (look.live(), look.over(), told()) == (*before, seen)
        do(work(lease))
        assert told() == sorted([*seen, (lease.job_id, how)])


@every_exit
def test_what_follows_is_rolled_back_with_the_transaction_of_the_caller(
    do: Do, clock: Clock, look: Look, told: Told, exit: str
) -> None:
    [lease] = followed(do)
    before = (look.live(), look.over())

    @flow
    def undone() -> Steps[None]:
        yield from EXITS[exit][1](lease)
        raise Crash

    with pytest.raises(Crash):
        do(undone())
    assert (look.live(), look.over(), told()) == (*before, [])


def test_a_batch_settles_plain_and_followed_jobs(do: Do, clock: Clock, look: Look, told: Told) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(12)]))
    leases = do(jobs.claim("mail", limit=12))
    do(jobs.follow([lease.job_id for lease in leases[::2]], BIT))
    ends = [
        finish(lease, "done", keep=n < 4) if n < 8 else PutBack(lease.id, lease.fence, 0, 0, failure())
        for n, lease in enumerate(leases)
    ]
    for _ in range(2):
        assert do(jobs.settle(ends)) == jobs.Settled({lease.job_id for lease in leases}, set())
    assert {row.id for row in look.over()} == {lease.job_id for lease in leases[:4]}
    assert {row.id for row in look.live()} == {lease.job_id for lease in leases[8:]}
    hows = ["done", "done", "done", "done", "returned", "returned"]
    assert told() == sorted(zip([lease.job_id for lease in leases[::2]], hows, strict=True))


def test_a_batch_that_lost_a_lease_settles_the_others_by_their_doors(
    do: Do, clock: Clock, look: Look, told: Told
) -> None:
    kept, lost = followed(do, 2)
    do(jobs.release(lost))
    do(jobs.claim("mail", limit=1))
    assert do(jobs.settle([finish(kept), finish(lost)])) == jobs.Settled({kept.job_id}, {lost.job_id})
    assert told() == sorted([(lost.job_id, "returned"), (kept.job_id, "done")])


@pytest.mark.parametrize("asked_to_stop", [False, True], ids=["dead", "cancelled"])
def test_a_reap_that_ends_a_job_passes_the_door(
    do: Do, clock: Clock, look: Look, told: Told, asked_to_stop: bool
) -> None:
    [lease] = followed(do, max_attempts=1)
    do(jobs.begin(lease))
    if asked_to_stop:
        assert do(admin.cancel(lease.job_id, None)) == "requested"
    clock.pass_lease(lease)
    [reaped] = do(jobs.reap())
    assert told() == [(lease.job_id, reaped.outcome)]
    assert [row.outcome for row in look.over()] == [reaped.outcome] == ["cancelled" if asked_to_stop else "dead"]


def followed_twin(do: Do, **fields: Any) -> Lease:
    """Claim and follow a job that is finished already: the database ran its first enqueue long after the repeat."""
    job = new_job(**fields)
    do(jobs.enqueue(job))
    do(jobs.complete(do(jobs.claim("mail", limit=1))[0], '"once"'))
    do(jobs.enqueue(job, fresh=True))
    [twin] = do(jobs.claim("mail", limit=1))
    assert do(jobs.follow([twin.job_id], BIT)) == {twin.job_id}
    return twin


def test_a_reap_of_a_job_that_is_finished_already_passes_the_door(do: Do, clock: Clock, look: Look, told: Told) -> None:
    twin = followed_twin(do, max_attempts=1)
    do(jobs.begin(twin))
    clock.pass_lease(twin)
    assert do(jobs.reap()) == []
    assert told() == [(twin.job_id, "dead")]
    assert look.live() == []
    assert [(row.outcome, row.result) for row in look.over()] == [("done", '"once"')]


def test_a_repeated_enqueue_takes_back_nothing_that_is_followed(do: Do, clock: Clock, look: Look, told: Told) -> None:
    twin = followed_twin(do)
    do(jobs.release(twin))
    seen = told()
    do(jobs.enqueue(new_job(id=twin.job_id)))
    assert [row.id for row in look.live()] == [twin.job_id]
    do(jobs.settle([finish(do(jobs.claim("mail", limit=1))[0], keep=False)]))
    assert told() == sorted([*seen, (twin.job_id, "done")])


def test_a_repeated_enqueue_takes_back_no_dropped_job_that_is_followed(
    do: Do, clock: Clock, look: Look, told: Told
) -> None:
    job = new_job()
    do(jobs.enqueue(job))
    do(jobs.complete(do(jobs.claim("mail", limit=1))[0], keep=False))
    do(jobs.enqueue(job, fresh=True))
    do(jobs.follow([job.id], BIT))
    do(jobs.enqueue(job))
    assert [row.id for row in look.live()] == [job.id]
    do(admin.cancel(job.id, None))
    assert told() == [(job.id, "cancelled")]


@pytest.mark.parametrize("state", ["pending", "waiting"])
def test_a_cancel_by_hand_passes_the_door(do: Do, clock: Clock, told: Told, state: str) -> None:
    [lease] = followed(do)
    do(jobs.park(lease, "children", None if state == "waiting" else 60_000))
    do(admin.cancel(lease.job_id, "ada"))
    assert told() == sorted([(lease.job_id, "parked"), (lease.job_id, "cancelled")])


def test_a_dead_letter_that_is_discarded_passes_the_door(do: Do, clock: Clock, look: Look, told: Told) -> None:
    [lease] = followed(do)
    do(jobs.kill(lease, failure(), "group"))
    do(jobs.kill(do_claim(do), failure(), "group"))
    assert len(do(admin.discard(admin.Filter(), 10, "ada", dry_run=True))) == 2
    assert told() == [(lease.job_id, "dead")]
    assert len(do(admin.discard(admin.Filter(), 10, "ada"))) == 2
    assert told() == sorted([(lease.job_id, "dead"), (lease.job_id, "discarded")])


def do_claim(do: Do) -> Lease:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    return lease


def test_a_dead_letter_that_comes_back_passes_the_door_again(do: Do, clock: Clock, look: Look, told: Told) -> None:
    [lease] = followed(do)
    do(jobs.kill(lease, failure(), "group"))
    assert [row.followers for row in look.over()] == [BIT]
    do(admin.retry(lease.job_id, "ada"))
    assert [row.followers for row in look.live()] == [BIT]
    [again] = do(jobs.claim("mail", limit=1))
    do(jobs.settle([finish(again)]))
    assert told() == sorted([(lease.job_id, "dead"), (lease.job_id, "done")])


def test_what_follows_learns_who_left_and_how(do: Do, clock: Clock) -> None:
    seen: list[Left] = []

    def remember(left: Sequence[Left]) -> Steps[None]:
        seen.extend(left)
        yield from note(left)

    door.attach(BIT, remember)
    try:
        [lease] = followed(do, kind="send", key="order:1")
        do(jobs.settle([finish(lease)]))
    finally:
        door.detach(BIT)
    assert seen == [Left(lease.job_id, lease.fence, "mail", "send", "order:1", BIT, "done", '"r"')]


def test_consequences_run_in_the_order_of_bits_each_with_its_own_jobs(do: Do, clock: Clock) -> None:
    ran: list[tuple[int, list[str]]] = []

    def remembers(bit: int) -> door.Consequence:
        def consequence(left: Sequence[Left]) -> Steps[None]:
            ran.append((bit, [row.id for row in left]))
            yield from note(left)

        return consequence

    bits = (BIT, OTHER_BIT)
    for bit in bits:
        door.attach(bit, remembers(bit))
    try:
        one, both = followed(do, 2)
        do(jobs.follow([both.job_id], OTHER_BIT))
        do(jobs.settle([finish(both), finish(one)]))
    finally:
        for bit in bits:
            door.detach(bit)
    assert ran == [(OTHER_BIT, [both.job_id]), (BIT, sorted([one.job_id, both.job_id]))]


def test_a_consequence_that_fails_leaves_its_job_as_it_was(do: Do, clock: Clock, look: Look) -> None:
    def fails(left: Sequence[Left]) -> Steps[None]:
        yield from note(left)
        raise Crash

    door.attach(BIT, fails)
    try:
        [lease] = followed(do)
        before = look.live()
        with pytest.raises(Crash):
            do(jobs.settle([finish(lease)]))
    finally:
        door.detach(BIT)
    assert (look.live(), look.over(), do(admin.audit())) == (before, [], [])


def test_a_job_whose_consequence_is_unknown_here_is_not_ended(do: Do, clock: Clock, look: Look, told: Told) -> None:
    [lease] = followed(do)
    do(jobs.follow([lease.job_id], UNKNOWN_BIT))
    before = look.live()
    with pytest.raises(UnknownFollowers) as unknown:
        do(jobs.settle([finish(lease)]))
    assert (unknown.value.job_id, unknown.value.bit) == (lease.job_id, UNKNOWN_BIT)
    assert (look.live(), look.over(), told()) == (before, [], [])


def test_a_job_whose_consequence_is_unknown_here_keeps_no_other_from_being_taken_back(
    do: Do, clock: Clock, look: Look, told: Told
) -> None:
    strange, *others = followed(do, count=3)
    do(jobs.follow([strange.job_id], UNKNOWN_BIT))
    clock.advance(3600)
    assert {one.id for one in do(jobs.reap())} == {lease.job_id for lease in others}
    assert [row.id for row in look.live() if row.state == "leased"] == [strange.job_id]
    assert do(jobs.release_strays("worker", [])) == 0


def test_only_a_live_job_can_be_followed(do: Do, clock: Clock, look: Look, told: Told) -> None:
    ended = do_claim(do)
    do(jobs.complete(ended))
    pending, never = new_job(), new_job()
    do(jobs.enqueue(pending))
    assert do(jobs.follow([ended.job_id, pending.id, never.id], BIT)) == {pending.id}
    assert [row.followers for row in look.over()] == [None]


@pytest.mark.parametrize("bit", [0, 3, -1, door.LAST_BIT << 1])
def test_a_consequence_has_a_bit_of_its_own(bit: int) -> None:
    with pytest.raises(ConfigError):
        door.attach(bit, note)
    door.attach(BIT, note)
    door.attach(BIT, note)
    try:
        with pytest.raises(ConfigError, match="no other surface"):
            door.attach(BIT, lambda left: note(left))
    finally:
        door.detach(BIT)
