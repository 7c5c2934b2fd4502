"""Kill workers at random for a while, then count from the tables that nothing was lost and nothing doubled.

`python -m tests.faults.kill --seconds 60` (make kill) does it on every database that can be had and prints a ledger
for each.
A producer enqueues in business transactions of its own, some of them rolled back. Three worker processes serve four
kinds: effect through `job.transaction()` or plainly in a commit of its own, each as `async def` and as `def`; and two
that continue. About every second one worker is killed with SIGKILL and replaced, and now and then one is frozen for
longer than its lease. Most of what is enqueued has order, limits, parents or a batch (`stories`): all processes write
down what they do, and the shipped rules are held against it.
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
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast import Continue, Holdfast, Job, Retry, admin, schedules
from holdfast.admin import Filter
from holdfast.demo.crew import Crew, Member, serve
from holdfast.demo.proof import all_jobs
from holdfast.errors import redact
from holdfast.events import WorkerStarted
from holdfast.testing.history import Recorder
from tests.faults import stories
from tests.faults.ledger import Effect, Ledger
from tests.faults.shared import DATABASES, backlog, file_is_held, in_async_style, in_sync_style, own_database, until

URL = "HOLDFAST_URL"
LEASE = 3.0
# The seconds that a short run is made longer by, until somebody was hurt.
LONGEST_WAIT_FOR_HARM = 60.0
# Enough that no job runs out of attempts by being killed: a job that ends dead would have to be explained.
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
        for fn in (self.book, self.book_on_thread, self.post, self.post_on_thread, self.link, self.fuse):
            self.holdfast.job(kind=fn.__name__, lease=LEASE, retry=policy)(fn)
        stories.declare(self.holdfast, self.holdfast.bind("post", {"pause": 0.0}))

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

    async def link(self, job: Job, pause: float) -> Continue:
        """Leave a plain effect, and have another job continue this one."""
        await self.post(job, pause)
        return Continue(self.holdfast.bind("post", {"pause": pause}))

    def fuse(self, job: Job, pause: float) -> None:
        """Have effect, completion and the next job in one commit."""
        job.then(self.holdfast.bind("post", {"pause": pause}))
        self.book_on_thread(job, pause)

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

    def __init__(self, works: Works, recorder: Recorder | None = None) -> None:
        super().__init__(daemon=True)
        self.works = works
        self.stories = None if recorder is None else stories.Stories(works.holdfast, recorder, pause)
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
        if self.stories is not None:
            for _ in range(random.randint(1, 5)):
                self._tell(self.stories, connection)
        holdfast, most = self.works.holdfast, 40 if self.stories is None else 10
        bound = [holdfast.bind(random.choice(KINDS), {"pause": pause()}) for _ in range(random.randint(1, most))]
        connection.execute(holdfast.store.dialect.begin)
        ids = [answer.id for answer in holdfast.enqueue_many(bound, tx=connection)]
        with suppress(stories.RolledBack):
            self._end(connection, ids)

    def _tell(self, told: stories.Stories, connection: Any) -> None:
        """Enqueue what has order, limits or parents, and write it down."""
        connection.execute(self.works.holdfast.store.dialect.begin)
        with suppress(stories.RolledBack), told.told(told.draw(), connection) as ids:
            self._end(connection, ids)

    def _end(self, connection: Any, ids: list[str]) -> None:
        for job_id in ids:
            connection.execute(self.works.sql("insert into orders (job_id) values (?)"), (job_id,))
        if random.random() < 0.1:
            connection.execute("rollback")
            self.rolled_back |= set(ids)
            raise stories.RolledBack
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


def kill(url: str, seconds: float, workers: int = 3) -> Ledger:
    """Run all of it on one empty database and return what the tables, and the processes, say."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-kill-"))
    works, recorder = Works(url), Recorder(folder / "producer.jsonl")
    crew = Crew("tests.faults.kill", {URL: url, stories.FOLDER: str(folder)}, folder)
    try:
        prepare(works)
        works.holdfast.sync_schedules()
        [pulse] = works.holdfast.store.run(schedules.listed(stories.PULSE))
        producer, death = _start(works, crew, workers, Producer(works, recorder))
        _watch(works, producer, death, seconds)
        owed = stories.stop_ticks(works.holdfast, pulse.next_at)
        ledger = _drained(works, crew, producer, death, seconds)
        ledger.history, ledger.violations = stories.judged(works.holdfast, folder, owed)
        return ledger
    except Exception as error:
        error.add_note(crew.last_words())
        raise
    finally:
        crew.dismiss(5.0)
        recorder.close()
        works.holdfast.close()
        shutil.rmtree(folder, ignore_errors=True)


def prepare(works: Works) -> None:
    """Make Holdfast's tables and those of the business."""
    works.holdfast.migrate()
    with closing(works.connect()) as connection:
        for statement in TABLES:
            connection.execute(statement)


def _start(works: Works, crew: Crew, workers: int, producer: Producer) -> tuple[Producer, Death]:
    producer.start()
    for _ in range(workers):
        crew.hire()
    until("the workers began", lambda: producer.failure is not None or finished(works) > 0, 100)
    death = Death(crew, works)
    death.start()
    return producer, death


def _watch(works: Works, producer: Producer, death: Death, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while producer.failure is None and death.failure is None:
        left = deadline - time.monotonic()
        # On a busy machine a few seconds may pass in which nobody is hurt, which would prove nothing.
        if left <= 0 and (left < -LONGEST_WAIT_FOR_HARM or _has_harm(works, producer, death, seconds)):
            break
        time.sleep(0.1 if left > 0 else 1.0)
    for thread in (death, producer):
        thread.stopped.set()
    for thread in (death, producer):
        thread.join(30)
        if thread.failure is not None:
            raise thread.failure


def _has_harm(works: Works, producer: Producer, death: Death, seconds: float) -> bool:
    """Tell whether workers were killed and frozen, and a lease that they held was taken back."""
    return bool(
        death.killed
        and death.frozen
        and read_ledger(works, seconds, producer.rolled_back, death.killed, death.frozen).reaped
    )


def _drained(works: Works, crew: Crew, producer: Producer, death: Death, seconds: float) -> Ledger:
    # What is stuck is told by the ledger, beside the promise that was broken.
    with suppress(TimeoutError):
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
            for violation in ledger.violations[:20]:
                console.print(f"  {violation}", markup=False)
            broken += [f"{ledger.database}: {promise}" for promise in ledger.broken()]
    for promise in broken:
        console.print(f"[bold red]broken: {promise}[/]")
    if not broken:
        console.print("No job lost, no transactional effect doubled, every repeat explained, no rule broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    # A worker process is this module too, told apart by the database in its environment.
    if URL in os.environ and "HOLDFAST_CREW_NAME" in os.environ:
        app = Works(os.environ[URL]).holdfast
        if (recorder := stories.recorder_of_this_process()) is not None:
            recorder.attach(app)
        queues = ["default", "orders", "stripe", "tenants", "meter"]
        sys.exit(serve(app, queues=queues, concurrency=10, drain=10))
    sys.exit(main())
