"""Debounced calls on the caller's connection: they count if and only if it commits, and keep nobody else waiting."""

import pytest

from holdfast import Debounce, Throttle
from holdfast.jobs import claim, complete
from tests.callers.callers import KINDS
from tests.callers.test_isolation import CALLERS, SHOPS, answer_or_refusal, snapshot

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def debounced(shop, order, key="doc:7", wait=60):
    return shop.receipt.using(debounce=Debounce(key, wait=wait, max_wait=600)).bind(order=order)


def payloads(shop):
    return [str(row[0]).replace(" ", "") for row in shop.look("select payload from holdfast_jobs order by id")]


@each_kind
def test_a_debounced_call_counts_when_its_caller_commits(shop, caller):
    there = shop.hf.enqueue_bound(debounced(shop, 1))
    first = caller.enqueue(shop.hf, debounced(shop, 2))
    more = caller.enqueue_many(shop.hf, [debounced(shop, 3), debounced(shop, 4), debounced(shop, 5, key="doc:8")])
    assert [payload[-2] for payload in payloads(shop)] == ["1"]
    caller.commit()
    assert [answer.id for answer in (first, *more[:2])] == [there.id] * 3
    assert [answer.created for answer in (first, *more)] == [False, False, False, True]
    assert [payload[-2] for payload in payloads(shop)] == ["4", "5"]
    assert len(shop.look("select kind from holdfast_debounces")) == 2


@each_kind
def test_a_rollback_takes_back_what_a_debounced_call_said(shop, caller):
    shop.hf.enqueue_bound(debounced(shop, 1))
    caller.enqueue(shop.hf, debounced(shop, 2))
    caller.enqueue(shop.hf, debounced(shop, 3, key="doc:8"))
    caller.rollback()
    assert len(payloads(shop)) == 1
    assert payloads(shop)[0].endswith("1}")
    assert len(shop.look("select kind from holdfast_debounces")) == 1
    assert shop.hf.enqueue_bound(debounced(shop, 4, key="doc:8")).created


@each_kind
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_throttle_is_taken_if_its_caller_commits(shop, caller, end):
    throttled = shop.receipt.using(throttle=Throttle("doc:7", window=60))
    answers = [caller.enqueue(shop.hf, throttled.bind(order=order)) for order in (1, 2)]
    assert [answer.created for answer in answers] == [True, False]
    getattr(caller, end)()
    again = throttled.enqueue(order=3)
    assert again.created is (end == "rollback")
    assert shop.jobs == 1


LEVELS = ["read committed", "repeatable read", "serializable"]


class Snapshots:
    """Callers that have read, and so see this moment until their transaction ends, at each level of isolation."""

    @pytest.fixture(params=CALLERS)
    def where(self, request):
        return request.param

    @pytest.fixture
    def shop(self, where, request, shop_at):
        if where == "mysql":
            return shop_at(request.getfixturevalue("mysql_url"))
        return request.getfixturevalue(SHOPS[where])

    @pytest.fixture
    def caller_at(self, where, shop):
        callers = []

        def begin(level):
            caller = CALLERS[where](shop.url)
            callers.append(caller)
            caller.begin(level)
            snapshot(caller)
            return caller

        yield begin
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("level", LEVELS)
class TestAtEachLevel(Snapshots):
    def test_a_job_in_the_callers_snapshot_takes_the_call(self, shop, caller_at, level):
        first = shop.hf.enqueue_bound(debounced(shop, 1))
        caller = caller_at(level)
        answer = caller.enqueue(shop.hf, debounced(shop, 2))
        caller.commit()
        assert (answer.id, answer.created) == (first.id, False)
        assert payloads(shop)[0].endswith("2}")

    @pytest.mark.parametrize("happened", ["added", "changed", "claimed", "finished"])
    def test_what_happened_since_the_callers_snapshot_counts_or_the_caller_is_told_to_repeat(
        self, where, shop, caller_at, level, happened
    ):
        first = None if happened == "added" else shop.hf.enqueue_bound(debounced(shop, 1, wait=0))
        caller = caller_at(level)
        if happened in ("added", "changed"):
            first = shop.hf.enqueue_bound(debounced(shop, 2, wait=0))
        else:
            [lease] = shop.hf.store.run(claim("default", limit=1))
            if happened == "finished":
                shop.hf.store.run(complete(lease))
        answer = answer_or_refusal(caller, shop, debounced(shop, 3, wait=0))
        if isinstance(answer, str):
            # PostgreSQL and SQLite refuse to see beyond the snapshot; MariaDB from version 11.6 on.
            assert where != "mysql"
            assert level != "read committed" or where == "sqlite"
            assert answer in ("serialisation", "busy")
            caller.rollback()
            caller = caller_at(level)
            answer = answer_or_refusal(caller, shop, debounced(shop, 3, wait=0))
        caller.commit()
        job_id, created = answer
        found = happened in ("added", "changed")
        assert created is not found
        assert first is None or (job_id == first.id) is found
        assert sum(payload.endswith("3}") for payload in payloads(shop)) == 1


# Who asks MySQL for SERIALIZABLE has every read lock what it finds, and what it does not find.
@pytest.mark.parametrize("level", LEVELS[:2])
class TestOnMysql(Snapshots):
    @pytest.fixture(params=["mariadb", "mysql"])
    def where(self, request):
        return request.param

    def test_callers_whose_jobs_are_over_keep_no_enqueue_waiting_and_never_deadlock(self, shop, caller_at, level):
        """To look for a job that is not there would lock the gap where it stood, here the whole table."""
        for key in ("a", "b"):
            shop.hf.enqueue_bound(debounced(shop, 1, key=key, wait=0))
        for lease in shop.hf.store.run(claim("default", limit=9)):
            shop.hf.store.run(complete(lease))
        one, two = caller_at(level), caller_at(level)
        for caller in (one, two):
            caller.execute("set innodb_lock_wait_timeout = 2")
        # Each has looked at its job before either of them adds a new one, and somebody else adds one meanwhile.
        answers = [one.enqueue(shop.hf, debounced(shop, 2, key="a")), two.enqueue(shop.hf, debounced(shop, 2, key="b"))]
        shop.receipt.enqueue(order=3)
        for caller in (one, two):
            caller.enqueue(shop.hf, shop.receipt.bind(order=4))
            caller.commit()
        assert [answer.created for answer in answers] == [True, True]
        assert shop.jobs == 5
        assert not shop.look("select id from holdfast_jobs where fence < 0")

    def test_the_worker_of_a_job_that_runs_waits_for_no_caller(self, shop, caller_at, level):
        shop.hf.enqueue_bound(debounced(shop, 1, wait=0))
        [lease] = shop.hf.store.run(claim("default", limit=9))
        caller = caller_at(level)
        assert caller.enqueue(shop.hf, debounced(shop, 2)).created
        # It would wait for five seconds, and fail.
        shop.hf.store.run_once(complete(lease))
        caller.commit()
        assert [payload[-2] for payload in payloads(shop)] == ["2"]
