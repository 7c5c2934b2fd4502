"""Kill workers at random for a while, then count from the tables that nothing was lost and nothing doubled.

`python -m tests.faults.kill --seconds 60` (make kill) does it on every database that can be had and prints a ledger
for each.
A producer enqueues in business transactions of its own, some of them rolled back. Three worker processes serve four
kinds: effect through `job.transaction()` or plainly in a commit of its own, each as `async def` and as `def`. About
every second one worker is killed with SIGKILL and replaced, and now and then one is frozen for longer than its lease.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast import Holdfast, Job, Retry, admin
from holdfast.admin import Filter
from holdfast.demo.crew import Crew, Member, serve
from holdfast.demo.proof import all_jobs
from holdfast.errors import redact
from holdfast.events import WorkerStarted
from holdfast.life.expiry import LEASE_EXPIRED
from holdfast.values.views import JobView
from tests.faults.shared import DATABASES, backlog, file_is_held, in_async_style, in_sync_style, own_database, until

URL = "HOLDFAST_URL"
LEASE = 3.0
# So many that no job runs out of attempts by being killed: a job that ends dead would have to be explained.
MAX_ATTEMPTS = 1_000
BACKLOG = 200
DRAIN = 90.0
TRANSACTIONAL = ("book", "book_on_thread")
KINDS = (*TRANSACTIONAL, "post", "post_on_thread")

TABLES = (
    "create table orders (job_id text not null)",
    # No unique constraints: a doubled effect shall be seen, not refused.
    "create table booked (job_id text not null, attempt integer not null, fence integer not null, worker text)",
    "create table posted (job_id text not null, attempt integer not null, fence integer not null, worker text)",
)
BOOK = "insert into booked (job_id, attempt, fence, worker) values (?, ?, ?, ?)"
POST = "insert into posted (job_id, attempt, fence, worker) values (?, ?, ?, ?)"


# What a worker process runs


class Works:
    """The handlers, on one database."""

    def __init__(self, url: str) -> None:
        self.holdfast = Holdfast(url, busy_timeout=20)
        self.worker = ""
        self.holdfast.on(WorkerStarted, self._remember)
        policy = Retry(max_attempts=MAX_ATTEMPTS, first_delay=0.05, factor=1.0, max_delay=0.05)
        for fn in (self.book, self.book_on_thread, self.post, self.post_on_thread):
            self.holdfast.job(kind=fn.__name__, lease=LEASE, retry=policy)(fn)

    def connect(self) -> Any:
        """Open a plain connection of the application's own."""
        return self.holdfast.store.dialect.connect(self.holdfast.url)

    def _remember(self, started: WorkerStarted) -> None:
        self.worker = started.worker

    def row(self, job: Job) -> tuple[str, int, int, str]:
        return (job.id, job.attempt, job.fence, self.worker)

    async def book(self, job: Job, pause: float) -> None:
        await asyncio.sleep(pause)
        async with job.transaction() as tx:
            await tx.execute(self.native(BOOK), *self.row(job))

    def book_on_thread(self, job: Job, pause: float) -> None:
        time.sleep(pause)
        with job.transaction() as tx:
            tx.execute(self.sql(BOOK), self.row(job))

    async def post(self, job: Job, pause: float) -> None:
        await asyncio.sleep(pause / 2)
        if self.holdfast.store.embedded:
            await asyncio.to_thread(self._post_now, job)
        else:
            async with self.holdfast.store.alink() as link:
                await link.raw.execute(self.native(POST), *self.row(job))
        await asyncio.sleep(pause / 2)

    def post_on_thread(self, job: Job, pause: float) -> None:
        time.sleep(pause / 2)
        self._post_now(job)
        time.sleep(pause / 2)

    def _post_now(self, job: Job) -> None:
        with self.holdfast.store.link() as link:
            link.raw.execute(self.sql(POST), self.row(job))

    def sql(self, text: str) -> str:
        return in_sync_style(self.holdfast.store, text)

    def native(self, text: str) -> str:
        return in_async_style(self.holdfast.store, text)


# What happens to it


class Producer(threading.Thread):
    """Enqueues in transactions of its own, each with the ids in a table of its own; one in ten is rolled back."""

    def __init__(self, works: Works) -> None:
        super().__init__(daemon=True)
        self.works = works
        self.stopped = threading.Event()
        self.rolled_back: set[str] = set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.produce()
        except BaseException as error:
            self.failure = error

    def produce(self) -> None:
        with closing(self.works.connect()) as connection:
            while not self.stopped.wait(0.05):
                if backlog(self.works.holdfast.store) < BACKLOG:
                    self._transact(connection)

    def _transact(self, connection: Any) -> None:
        holdfast = self.works.holdfast
        bound = [holdfast.bind(random.choice(KINDS), {"pause": pause()}) for _ in range(random.randint(1, 40))]
        connection.execute(holdfast.store.dialect.begin)
        ids = [answer.id for answer in holdfast.enqueue_many(bound, tx=connection)]
        for job_id in ids:
            connection.execute(self.works.sql("insert into orders (job_id) values (?)"), (job_id,))
        if random.random() < 0.1:
            connection.execute("rollback")
            self.rolled_back |= set(ids)
        else:
            connection.execute("commit")


def pause() -> float:
    """How long a handler takes: mostly milliseconds, now and then longer than its lease."""
    return LEASE * 1.2 if random.random() < 0.002 else random.expovariate(1 / 0.02)


class Death(threading.Thread):
    """Kills one worker about every second, freezes one now and then, and hires another for each that died."""

    def __init__(self, crew: Crew, works: Works) -> None:
        super().__init__(daemon=True)
        self.crew = crew
        self.works = works
        self.stopped = threading.Event()
        self.killed: list[Member] = []
        self.frozen: list[Member] = []
        self.asleep: dict[Member, float] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.wait(random.uniform(0.7, 1.3)):
                self._thaw(time.monotonic())
                awake = self._awake()
                # The last one awake is killed, never frozen: somebody must be left to work, and to be hurt.
                if len(awake) > 1 and (not self.frozen or random.random() < 0.12):
                    self._freeze(random.choice(awake))
                else:
                    self._kill(random.choice(awake))
            self._thaw(float("inf"))
        except BaseException as error:
            self.failure = error

    def _awake(self) -> list[Member]:
        ended = [member.name for member in self.crew.members if not member.alive and member not in self.killed]
        if ended:
            raise AssertionError(f"ended although nobody killed them: {', '.join(ended)}")
        return [member for member in self.crew.alive if member not in self.asleep]

    def _kill(self, victim: Member) -> None:
        victim.kill()
        self.killed.append(victim)
        self.crew.hire()

    def _freeze(self, victim: Member) -> None:
        """Stop a worker for longer than its lease; it comes back as a zombie and must change nothing."""
        victim.freeze()
        if file_is_held(self.works.holdfast.store):
            # SQLite has one write lock: a process that sleeps on it stops everybody, and innocent leases run out.
            victim.thaw()
            return
        self.frozen.append(victim)
        self.asleep[victim] = time.monotonic() + LEASE * random.uniform(1.2, 1.6)

    def _thaw(self, now: float) -> None:
        for member in [member for member, end in self.asleep.items() if end <= now]:
            del self.asleep[member]
            member.thaw()


# What comes of it


@dataclass(frozen=True)
class Effect:
    job_id: str
    attempt: int
    fence: int
    worker: str


@dataclass
class Ledger:
    """What the tables hold at the end, beside what was done to the workers."""

    database: str
    seconds: float
    enqueued: set[str]
    rolled_back: set[str]
    jobs: dict[str, JobView]
    booked: list[Effect]
    posted: list[Effect]
    killed: list[Member] = field(default_factory=list)
    frozen: list[Member] = field(default_factory=list)

    @property
    def states(self) -> Counter[str]:
        return Counter(job.state for job in self.jobs.values())

    @property
    def lost(self) -> set[str]:
        """Committed jobs that are gone, or whose effect is."""
        return (self.enqueued - self.jobs.keys()) | (self.enqueued - self._effects())

    def _effects(self) -> set[str]:
        return {effect.job_id for effect in (*self.booked, *self.posted)}

    @property
    def strangers(self) -> set[str]:
        """Jobs or effects of transactions that never committed."""
        return (self.jobs.keys() | self._effects()) - self.enqueued

    @property
    def doubled(self) -> list[str]:
        return [job_id for job_id, count in Counter(e.job_id for e in self.booked).items() if count > 1]

    @property
    def wrongly_fenced(self) -> list[Effect]:
        """Transactional effects whose fence is not the one that their job was completed with."""
        return [e for e in self.booked if e.job_id in self.jobs and e.fence != self.jobs[e.job_id].fence]

    @property
    def repeats(self) -> list[Effect]:
        """Plain effects of attempts that did not complete their job, and whatever one attempt wrote twice."""
        completing = Counter(e.job_id for e in self.posted if self._completed_by(e))
        twice = [e for e in self.posted if self._completed_by(e) and completing[e.job_id] > 1]
        return [e for e in self.posted if not self._completed_by(e)] + twice

    def _completed_by(self, effect: Effect) -> bool:
        job = self.jobs.get(effect.job_id)
        return job is not None and job.fence == effect.fence

    @property
    def unexplained(self) -> list[Effect]:
        return [effect for effect in self.repeats if not self._explained(effect)]

    def _explained(self, effect: Effect) -> bool:
        """A repeat is explained when its lease ran out, says the job, and its worker was killed or frozen, say we."""
        job = self.jobs.get(effect.job_id)
        ended = job is not None and any(
            error["type"] == LEASE_EXPIRED and (error["attempt"], error["worker"]) == (effect.attempt, effect.worker)
            for error in job.errors
        )
        return ended and self.was_hurt(effect.worker)

    def was_hurt(self, worker: str) -> bool:
        return any(member.is_worker(worker) for member in (*self.killed, *self.frozen))

    @property
    def reaped(self) -> list[dict[str, Any]]:
        return [error for job in self.jobs.values() for error in job.errors if error["type"] == LEASE_EXPIRED]

    @property
    def other_errors(self) -> Counter[str]:
        errors = (error for job in self.jobs.values() for error in job.errors)
        return Counter(f"{e['type']}: {e['message'][:80]}" for e in errors if e["type"] != LEASE_EXPIRED)

    def broken(self) -> list[str]:
        """Name the promises that were not kept."""
        wrong = {
            "a committed job was lost": self.lost,
            "a rolled-back transaction left a job or an effect": self.strangers | (self.rolled_back & self.jobs.keys()),
            "a job did not end done": self.states.keys() - {"done"},
            "a transactional effect was doubled": self.doubled,
            "a transactional effect carries an old fence": self.wrongly_fenced,
            "a repeated plain effect has no killed attempt to explain it": self.unexplained,
            "nobody was killed, frozen and reaped": not (self.killed and self.frozen and self.reaped),
        }
        return [name for name, found in wrong.items() if found]

    def figures(self) -> dict[str, object]:
        innocent = [error for error in self.reaped if not self.was_hurt(error["worker"])]
        return {
            "seconds of killing": f"{self.seconds:.0f}",
            "jobs committed": len(self.enqueued),
            "jobs rolled back": len(self.rolled_back),
            "workers killed": len(self.killed),
            "workers frozen": len(self.frozen),
            "leases reaped": len(self.reaped),
            "… of workers that were not hurt": len(innocent),
            "other failed attempts": self.other_errors.total(),
            "ended": ", ".join(f"{count} {state}" for state, count in sorted(self.states.items())),
            "jobs lost": len(self.lost),
            "effects in job.transaction()": len(self.booked),
            "… doubled": len(self.doubled),
            "… with an old fence": len(self.wrongly_fenced),
            "plain effects": len(self.posted),
            "… repeated": len(self.repeats),
            "… explained by a hurt worker": len(self.repeats) - len(self.unexplained),
            "… unexplained": len(self.unexplained),
        }


def kill(url: str, seconds: float, workers: int = 3) -> Ledger:
    """Run all of it on one empty database and return what the tables say."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-kill-"))
    works = Works(url)
    crew = Crew("tests.faults.kill", {URL: url}, folder)
    try:
        producer, death = _start(works, crew, workers)
        _watch(producer, death, seconds)
        return _drained(works, crew, producer, death, seconds)
    except Exception as error:
        error.add_note(crew.last_words())
        raise
    finally:
        crew.dismiss(5.0)
        works.holdfast.close()
        shutil.rmtree(folder, ignore_errors=True)


def prepare(works: Works) -> None:
    """Make Holdfast's tables and those of the business."""
    works.holdfast.migrate()
    with closing(works.connect()) as connection:
        for statement in TABLES:
            connection.execute(statement)


def _start(works: Works, crew: Crew, workers: int) -> tuple[Producer, Death]:
    prepare(works)
    producer = Producer(works)
    producer.start()
    for _ in range(workers):
        crew.hire()
    until("the workers began", lambda: producer.failure is not None or finished(works) > 0, 100)
    death = Death(crew, works)
    death.start()
    return producer, death


def _watch(producer: Producer, death: Death, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and producer.failure is None and death.failure is None:
        time.sleep(0.1)
    for thread in (death, producer):
        thread.stopped.set()
    for thread in (death, producer):
        thread.join(30)
        if thread.failure is not None:
            raise thread.failure


def _drained(works: Works, crew: Crew, producer: Producer, death: Death, seconds: float) -> Ledger:
    until_empty(works)
    crew.dismiss()
    return read_ledger(works, seconds, producer.rolled_back, death.killed, death.frozen)


def until_empty(works: Works) -> None:
    until("every job ended", lambda: backlog(works.holdfast.store) == 0, DRAIN)


def read_ledger(
    works: Works, seconds: float, rolled_back: set[str], killed: list[Member], frozen: list[Member]
) -> Ledger:
    """Read from the tables what came of it."""
    with closing(works.connect()) as connection:
        return Ledger(
            works.holdfast.store.dialect.name,
            seconds,
            {row[0] for row in connection.execute("select job_id from orders").fetchall()},
            rolled_back,
            {job.id: job for job in all_jobs(works.holdfast.store)},
            [Effect(*row) for row in connection.execute("select * from booked").fetchall()],
            [Effect(*row) for row in connection.execute("select * from posted").fetchall()],
            killed,
            frozen,
        )


def finished(works: Works) -> int:
    return works.holdfast.store.run(admin.count_jobs(Filter(states=("done",))))


# The command


def table(ledger: Ledger) -> Table:
    drawn = Table(title=f"Kill ledger: {ledger.database}", title_justify="left")
    drawn.add_column("counted")
    drawn.add_column("", justify="right")
    for name, value in ledger.figures().items():
        drawn.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    return drawn


@contextmanager
def databases(urls: list[str]) -> Iterator[list[str]]:
    """Give the databases to use: those asked for, or a file and a server of our own of each other kind."""
    if urls:
        yield urls
        return
    with ExitStack() as stack:
        yield [ground.url for name in DATABASES if (ground := stack.enter_context(own_database(name))) is not None]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kill", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of killing, for each database")
    parser.add_argument("--url", action="append", default=[], help="an empty database; may be given several times")
    parser.add_argument("--workers", type=int, default=3)
    said = parser.parse_args(arguments)
    console = Console(highlight=False)
    broken: list[str] = []
    with databases(said.url) as urls:
        for url in urls:
            console.print(f"Killing workers on {redact(url)} for {said.seconds:.0f} s …")
            ledger = kill(url, said.seconds, said.workers)
            console.print(table(ledger))
            for error, count in ledger.other_errors.items():
                console.print(f"  {count} attempts failed with {error}", markup=False)
            broken += [f"{ledger.database}: {promise}" for promise in ledger.broken()]
    for promise in broken:
        console.print(f"[bold red]broken: {promise}[/]")
    if not broken:
        console.print("No job lost, no transactional effect doubled, every repeat explained.")
    return 1 if broken else 0


if __name__ == "__main__":
    # A worker process is this module too, told apart by the database in its environment.
    if URL in os.environ and "HOLDFAST_CREW_NAME" in os.environ:
        sys.exit(serve(Works(os.environ[URL]).holdfast, concurrency=10, drain=10))
    sys.exit(main())
