"""Drain: workers that are asked to stop, by id or by host, and stay so whatever they beat."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import admin
from holdfast.errors import ConfigError
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do
from holdfast.worker import draining, registry


def test_a_drained_worker_stays_draining_whatever_it_beats(do: Do, clock: Clock) -> None:
    do(registry.beat("w1", '{"host":"web1"}'))
    clock.advance(5)
    assert do(draining.drain("w1", None, "ann")).asked == ["w1"]
    [worker] = do(registry.workers())
    assert (worker.status, worker.silent_for) == ("draining", timedelta(seconds=5)), "that is no sign of life"
    assert do(registry.beat("w1", '{"host":"web1"}')) == "draining"
    clock.advance(3600)
    do(registry.bury(timedelta(seconds=60)))
    assert do(registry.beat("w1", '{"host":"web1"}')) == "draining"
    [line] = do(admin.audit())
    assert (line.action, line.actor, line.detail) == ("worker_drain", "ann", {"worker": "w1"})


def test_workers_are_drained_by_id_or_by_host(do: Do, clock: Clock) -> None:
    for worker, host in (("w1", "web1"), ("w2", "web1"), ("w3", "web2"), ("w4", "web1"), ("w5", "web1")):
        do(registry.beat(worker, f'{{"host":"{host}"}}'))
    do(registry.mark("w4", "dead"))
    do(registry.mark("w5", "draining"))
    foreseen = do(draining.drain(None, "web1", None, dry_run=True))
    assert (foreseen.asked, foreseen.left) == (["w1", "w2"], {"w5": "draining"})
    assert do(registry.beat("w1", '{"host":"web1"}')) == "alive"
    assert do(draining.drain(None, "web1", None)) == foreseen
    answer = do(draining.drain(["w3", "w1", "w4", "gone"], None, None))
    assert (answer.asked, answer.left) == (["w3"], {"w1": "draining", "w4": "dead", "gone": "unknown"})
    assert {worker.id: worker.status for worker in do(registry.workers())}["w4"] == "dead"
    for wrong in (draining.drain(None, None, None), draining.drain("w1", "web1", None)):
        with pytest.raises(ConfigError):
            do(wrong)
