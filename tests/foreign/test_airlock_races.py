"""Two relays on Airlock's table, ours or the other: stepped by hand, in a storm, and with a worker that is killed."""

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job
from holdfast.foreign import AirlockOutbox
from holdfast.sinks import Function
from holdfast.testing.clock import Clock
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.rows import Finish, Lease
from tests.foreign.airlock import TYPE, AirlockRelay, look, produce, produced_by_node
from tests.foreign.conftest import Sql, ids
from tests.foreign.test_engine import ROOT, WORKER
from tests.foreign.test_races import storm
from tests.foreign.test_served import serve
from tests.races.stepping import stepped

EACH = 60
PATIENCE = 30.0


@pytest.fixture
def served(outbox: AirlockOutbox) -> AirlockOutbox:
    outbox.handler(TYPE)(lambda: None)
    return outbox


@pytest.fixture
def join(hf: Holdfast) -> Iterator[Callable[[str], AirlockRelay]]:
    """Make relays of the other kind that are closed when the test is over."""
    made: list[AirlockRelay] = []

    def make(name: str) -> AirlockRelay:
        made.append(AirlockRelay(hf.store, name))
        return made[-1]

    yield make
    for one in made:
        one.close()


def add(sql: Sql, clock: Clock, count: int = 1) -> list[str]:
    return [produce(sql, created_at=clock.now, next_retry_at=clock.now) for _ in range(count)]


def claim(source: AirlockOutbox, limit: int = 1, worker: str = "w") -> Any:
    return source.claim(dict.fromkeys(source.handlers, 1), limit, worker)


def test_the_other_relay_skips_what_we_are_claiming_and_leaves_what_we_hold(
    hf: Holdfast, served: AirlockOutbox, sql: Sql, clock: Clock, join: Callable[[str], AirlockRelay]
) -> None:
    add(sql, clock, 2)
    relay = join("node")
    with stepped(hf.store, claim(served)) as ours:
        ours.step_through("pick")
        [theirs] = relay.claim(clock.now)
        [lease] = ours.commit()
    assert lease.id != theirs
    assert relay.claim(clock.now) == []
    assert hf.store.run(claim(served)) == []
    assert not relay.finish(lease.id, clock.now)


def test_we_skip_what_the_other_relay_is_claiming_and_leave_what_it_holds(
    hf: Holdfast, served: AirlockOutbox, sql: Sql, clock: Clock, join: Callable[[str], AirlockRelay]
) -> None:
    rows = add(sql, clock, 2)
    relay = join("node")
    relay.link.tell("begin")
    [theirs] = relay.pick(clock.now, 1)
    [lease] = hf.store.run(claim(served, limit=5))
    relay.link.tell("rollback")
    assert {lease.id, theirs} == set(rows)
    assert relay.claim(clock.now) == [theirs]
    assert hf.store.run(claim(served, limit=5)) == []


def test_a_reclaim_races_the_late_holders_settle_and_one_of_them_wins(
    hf: Holdfast, served: AirlockOutbox, sql: Sql, clock: Clock, join: Callable[[str], AirlockRelay]
) -> None:
    [row] = add(sql, clock)
    [late] = hf.store.run(claim(served))
    clock.pass_lease(late)
    with stepped(hf.store, served.settle([Finish(late.id, late.fence, "done")], "w")) as settling:
        settling.step_through("held")
        assert hf.store.run(claim(served, worker="other")) == join("node").claim(clock.now) == []
        assert settling.commit().done == {row}
    assert look(sql, row).status == "PROCESSED"


def test_a_storm_of_two_kinds_of_relays_claims_every_message_once(
    hf: Holdfast, served: AirlockOutbox, sql: Sql, clock: Clock, join: Callable[[str], AirlockRelay]
) -> None:
    rows = add(sql, clock, EACH)
    taken: list[str] = []

    def ours(name: str) -> Callable[[], bool]:
        def one() -> bool:
            leases: list[Lease] = hf.store.run(claim(served, limit=3, worker=name))
            taken.extend(ids(leases))
            return bool(leases)

        return one

    def theirs(name: str) -> Callable[[], bool]:
        relay = join(name)

        def one() -> bool:
            found = relay.claim(clock.now, limit=3)
            taken.extend(found)
            return bool(found)

        return one

    storm(ours("a"), ours("b"), theirs("c"), theirs("d"))
    assert Counter(taken) == Counter(rows)


def test_two_relays_drain_what_node_produced_and_each_message_is_handled_once(
    airlock_url: str, hf: Holdfast, outbox: AirlockOutbox, sql: Sql, join: Callable[[str], AirlockRelay]
) -> None:
    produced_by_node(airlock_url, 1, ending="rollback")
    produced = produced_by_node(airlock_url, 40)
    handled: list[tuple[str, Any]] = []
    relay, over = join("node"), threading.Event()

    @outbox.handler(TYPE)
    async def created(event: CloudEvent, job: Job) -> None:
        assert event.id == job.id
        handled.append((event.id, event.data))

    def relaying() -> None:
        while not over.is_set():
            for row_id in relay.claim(_now(relay), limit=2):
                handled.append((row_id, produced[row_id]))
                assert relay.finish(row_id, _now(relay))

    other = threading.Thread(target=relaying)
    other.start()
    try:
        serve(hf, lambda: sql.one("select count(*) from airlock_messages where status <> 'PROCESSED'") == (0,))
    finally:
        over.set()
        other.join()
    assert sorted(handled, key=str) == sorted(produced.items(), key=str)
    assert sql("select count(*), sum(retry_count) from airlock_messages where locked_by is null") == [(40, 0)]


def _now(relay: AirlockRelay) -> Any:
    return relay.run("select clock_timestamp()")[0][0][0]


def test_an_effect_and_the_end_of_its_message_commit_together(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    sql("create table effects (n integer)")

    @outbox.handler(TYPE)
    async def created(event: CloudEvent, job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into effects values (1)")

    row = produce(sql)
    serve(hf, lambda: look(sql, row).status == "PROCESSED")
    assert sql("select n from effects") == [(1,)]


def test_events_are_handed_over_to_routes_in_the_commit_that_ends_their_messages(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql
) -> None:
    sent: list[Any] = []
    hf.route("order.*", to=Function(lambda message: sent.append((message.event.type, message.event.data, message.key))))

    @outbox.handler("*")
    async def hand_over(event: CloudEvent, job: Job) -> None:
        async with job.transaction() as tx:
            await hf.apublish(event.type, event.data, key=job.headers["partition_key"], tx=tx)

    row = produce(sql)
    serve(hf, lambda: bool(sent))
    assert sent == [(TYPE, {"order": 9182}, "9182")]
    assert look(sql, row).status == "PROCESSED"


APP = """
import os, time
from pathlib import Path
from holdfast import Holdfast, Job
from holdfast.values.cloudevents import CloudEvent

hf = Holdfast({url!r})
outbox = hf.foreign.airlock(lease=1)
notes = Path({notes!r})


@outbox.handler("order.created")
def created(event: CloudEvent, job: Job) -> None:
    first = not notes.exists()
    with notes.open("a") as file:
        file.write(f"{{event.id}} {{job.attempt}}\\n")
    if first:
        time.sleep(600)
"""


def test_a_worker_killed_in_the_middle_loses_no_message(
    airlock_url: str, hf: Holdfast, outbox: AirlockOutbox, sql: Sql, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    (tmp_path / "shop.py").write_text(APP.format(url=airlock_url, notes=str(notes)))
    hf.migrate()
    row = produce(sql)
    command = [*WORKER, "shop:hf", "--poll", "0.1"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    first = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        _wait(notes.exists)
        # It is renewed while its handler runs, longer than its lease.
        until = look(sql, row).locked_until
        _wait(lambda: look(sql, row).locked_until != until)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert look(sql, row).status == "IN_FLIGHT"
    second = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: look(sql, row).status == "PROCESSED")
    finally:
        second.terminate()
        second.wait()
    assert notes.read_text().splitlines() == [f"{row} 1", f"{row} 2"]
    assert look(sql, row).retry_count == 1


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
