"""Workers and producers on all three nodes, and one node killed under them: the kill test's ledger must hold."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from rich.console import Console

from holdfast.demo.crew import Crew, Member
from holdfast.errors import StoreError
from tests.faults.kill import URL, Producer, Works, finished, prepare, read_ledger, table, until_empty
from tests.faults.ledger import Ledger
from tests.faults.shared import until
from tests.galera.cluster import Cluster, Node

pytestmark = [pytest.mark.slow, pytest.mark.galera, pytest.mark.timeout(400)]

WORKERS_PER_NODE = 2
BEFORE, WITHOUT, AFTER = 4.0, 6.0, 4.0


class PatientProducer(Producer):
    """Goes on after a transaction that failed; whether it was committed, only the table of orders can tell."""

    failed = 0

    def produce(self) -> None:
        while not self.stopped.wait(0.1):
            try:
                super().produce()
            except (StoreError, pymysql.err.OperationalError, pymysql.err.InterfaceError, OSError):
                self.failed += 1


class Scene:
    """What runs on one database of the cluster: on each node two workers and a producer of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.urls = cluster.fresh_database()
        self.works = [Works(url) for url in self.urls]
        prepare(self.works[0])
        cluster.caught_up()
        self.producers = [PatientProducer(works) for works in self.works]
        self.crews = [Crew("tests.faults.kill", {URL: url}, folder / f"node{n}") for n, url in enumerate(self.urls, 1)]

    def begin(self) -> None:
        for producer, crew in zip(self.producers, self.crews, strict=True):
            crew.log.parent.mkdir()
            for number in range(WORKERS_PER_NODE):
                crew.hire(f"{crew.log.parent.name}w{number}")
            producer.start()
        until("all workers began", lambda: self.began() == WORKERS_PER_NODE * len(self.crews), 60)

    def began(self) -> int:
        name = self.urls[0].rpartition("/")[2]
        return len(self.cluster.nodes[0].execute("select id from holdfast_workers", name))

    def members(self, crew: Crew | None = None) -> list[Member]:
        return [member for one in ([crew] if crew else self.crews) for member in one.members]

    def end(self) -> None:
        for producer in self.producers:
            producer.stopped.set()
        for producer in self.producers:
            if producer.ident is not None:
                producer.join(30)
        for crew in self.crews:
            crew.dismiss(5.0)
        for works in self.works:
            works.holdfast.close()

    def ledger(self, victim: Node, seconds: float) -> Ledger:
        """Stop producing, let the workers empty the queue, and read the tables of a node that was not killed."""
        for producer in self.producers:
            producer.stopped.set()
            producer.join(60)
            if producer.failure is not None:
                raise producer.failure
        self.cluster.caught_up()
        reader = next(works for works, node in zip(self.works, self.cluster.nodes, strict=True) if node is not victim)
        until_empty(reader)
        for member in self.members():
            assert member.alive, f"{member.name} ended by itself"
        for crew in self.crews:
            crew.dismiss()
        self.cluster.caught_up()
        rolled_back = {job_id for producer in self.producers for job_id in producer.rolled_back}
        # The workers of the dead node lost their database; the whole cluster stood still until it gave the node up.
        killed = self.members(self.crews[victim.number - 1])
        return read_ledger(reader, seconds, rolled_back, killed, self.members())


@contextmanager
def playing(cluster: Cluster, folder: Path) -> Iterator[Scene]:
    scene = Scene(cluster, folder)
    try:
        scene.begin()
        yield scene
    except BaseException as error:
        for crew in scene.crews:
            error.add_note(crew.last_words())
        raise
    finally:
        scene.end()


def test_killing_a_node_loses_no_job_and_doubles_no_effect(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = random.choice(cluster.nodes)
    survivor = next(node for node in cluster.nodes if node is not victim)
    began = time.monotonic()
    with playing(cluster, tmp_path) as scene:
        time.sleep(BEFORE)
        victim.kill()
        cluster.await_size(2)
        stood_still = finished(scene.works[survivor.number - 1])
        time.sleep(WITHOUT)
        without = finished(scene.works[survivor.number - 1])
        victim.start()
        back = finished(scene.works[victim.number - 1])
        time.sleep(AFTER)
        ledger = scene.ledger(victim, time.monotonic() - began)
        conflicts = sum(node.conflicts for node in cluster.nodes)
    say(capsys, ledger, victim, conflicts, [producer.failed for producer in scene.producers])

    assert ledger.broken() == [], ledger.figures()
    assert len(ledger.enqueued) > 100
    assert without > stood_still, "two nodes go on without the third"
    assert len(ledger.jobs) > back, "and so do three"
    assert conflicts > 0, "nobody ever met anybody: this proves nothing"


def say(capsys: pytest.CaptureFixture[str], ledger: Ledger, victim: Node, conflicts: int, failed: list[int]) -> None:
    """Print the ledger, as the kill test does."""
    with capsys.disabled():
        console = Console(highlight=False)
        console.print(table(ledger))
        console.print(f"Node {victim.number} was killed. Conflicts between nodes: {conflicts}.")
        console.print(f"Failed transactions of the producers: {', '.join(map(str, failed))}.")
        for error, count in ledger.other_errors.items():
            console.print(f"  {count} attempts failed with {error}", markup=False)
