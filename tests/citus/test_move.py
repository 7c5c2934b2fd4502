"""A schema moves to another node while jobs are enqueued and run there: the kill test's ledger must hold."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast import schedules
from holdfast.demo.crew import Crew
from holdfast.errors import StoreError
from tests.citus.cluster import Cluster
from tests.faults import stories
from tests.faults.kill import URL, Producer, Works, finished, prepare, read_ledger, until_empty
from tests.faults.ledger import Ledger
from tests.faults.shared import until

pytestmark = [pytest.mark.slow, pytest.mark.citus, pytest.mark.timeout(600)]

WORKERS = 2
AFTER = 4.0


class PatientProducer(Producer):
    """Goes on after a transaction that failed; whether it was committed, only the table of orders can tell."""

    failed = 0

    def produce(self) -> None:
        while not self.stopped.wait(0.1):
            try:
                super().produce()
            except (StoreError, psycopg.Error):
                self.failed += 1


class Load:
    """A producer and workers on one schema."""

    def __init__(self, url: str, folder: Path) -> None:
        self.began = time.monotonic()
        self.works = Works(url)
        prepare(self.works)
        self.producer = PatientProducer(self.works)
        self.crew = Crew("tests.faults.kill", {URL: url}, folder)

    def begin(self) -> None:
        self.producer.start()
        for _ in range(WORKERS):
            self.crew.hire()
        self.more("the workers began")

    def more(self, what: str) -> None:
        """Wait until more jobs have ended than now."""
        now = finished(self.works)
        until(what, lambda: self.producer.failure is not None or finished(self.works) > now + 20, 100)

    def ledger(self) -> Ledger:
        """Stop producing, let the workers empty the queues, and read the tables."""
        self.producer.stopped.set()
        self.producer.join(60)
        if self.producer.failure is not None:
            raise self.producer.failure
        # A tick after the last look would leave a job that nobody runs.
        self.works.holdfast.store.run(schedules.pause(stories.PULSE, None))
        until_empty(self.works)
        for member in self.crew.members:
            assert member.alive, f"{member.name} ended by itself"
        self.crew.dismiss()
        # Writes stand still for the last moment of a move: a lease that ran out then is explained by it.
        seconds = time.monotonic() - self.began
        return read_ledger(self.works, seconds, self.producer.rolled_back, [], self.crew.members)

    def end(self) -> None:
        self.producer.stopped.set()
        if self.producer.ident is not None:
            self.producer.join(30)
        self.crew.dismiss(5.0)
        self.works.holdfast.close()


@contextmanager
def loaded(url: str, folder: Path) -> Iterator[Load]:
    load = Load(url, folder)
    try:
        load.begin()
        yield load
    except BaseException as error:
        error.add_note(load.crew.last_words())
        raise
    finally:
        load.end()


def test_a_schema_that_moves_under_load_loses_nothing(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster.schema() as name, loaded(cluster.url_in(name), tmp_path) as load:
        told = "no Citus here: nothing was moved"
        if cluster.version is not None:
            began = time.monotonic()
            before, after = cluster.move(name)
            assert before != after
            told = f"moved from node {before} to node {after} in {time.monotonic() - began:.1f} s"
        load.more("work goes on where the schema is now")
        time.sleep(AFTER)
        ledger = load.ledger()
    with capsys.disabled():
        print(f"\n{told}; jobs: {len(ledger.enqueued)}, failed transactions of the producer: {load.producer.failed}")

    # Nobody was killed here, which the ledger of the kill test would not forgive.
    broken = [promise for promise in ledger.broken() if not promise.startswith("nobody was killed")]
    assert broken == [], ledger.figures()
    assert len(ledger.enqueued) > 100
