"""What `holdfast demo` tells: orders come in, a worker is killed, a dead letter is replayed, all is counted."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast import admin
from holdfast.admin import Filter
from holdfast.demo import proof
from holdfast.demo.crew import Crew, Member
from holdfast.demo.proof import Killed
from holdfast.demo.shop import CONCURRENCY, FORGOTTEN, LEASE, MAIL_SECONDS, PREFIX, URL, Shop
from holdfast.errors import ConfigError, redact

ORDERS, WORKERS = 2_000, 3
# No stage takes a tenth of this; past it something is broken, and the demo says so instead of hanging.
PATIENCE = 120.0
LOOK = 0.1
SETTLE = 0.3
FEWEST = 20
# Seconds that the mails take, so that a worker is still busy when it is killed, however fast the machine is.
AT_LEAST = 3.0
# With a browser beside it the story goes slower, and somebody has this long to replay the dead letters by hand.
AT_LEAST_WATCHED, REPLAY_PATIENCE = 30.0, 60.0
INTERRUPTED = 130


class Stuck(Exception):
    """A stage of the story did not end."""


def run(
    url: str | None = None,
    orders: int = ORDERS,
    workers: int = WORKERS,
    *,
    dashboard: bool = False,
    console: Console | None = None,
    meddle: Callable[[Shop], None] | None = None,
) -> int:
    """Tell the story on the database at `url`, by default an embedded SQLite file, and return the exit code.

    0: every promise held; 1: one did not; 130: interrupted. Its tables have a prefix of their own and are dropped at
    the end. `dashboard` serves the pages beside it, tells it slower, and lets somebody replay the dead letters there.
    `meddle` may spoil the data before it is counted, to see that the count notices.
    """
    if orders < FEWEST or workers < 1:
        raise ConfigError("orders", f"the story needs at least {FEWEST} orders and a worker", orders)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    console = console or Console(highlight=False)
    prefix = f"hf_demo_{secrets.token_hex(4)}" if url else "holdfast"
    shop = Shop(url or f"sqlite:///{folder}/shop.db", prefix)
    at_least = AT_LEAST_WATCHED if dashboard else AT_LEAST
    crew = Crew("holdfast.demo.worker", _environment(shop, orders, workers, at_least), folder)
    try:
        with _terminate_as_interrupt(), _watched(shop, dashboard) as address:
            return Story(shop, crew, console, orders, workers, address).tell(meddle)
    except KeyboardInterrupt:
        console.print("Interrupted; cleaning up.")
        return INTERRUPTED
    except Stuck as error:
        console.print(f"[bold red]{error}[/]\n{crew.last_words()}", markup=True)
        return 1
    finally:
        _clean_up(shop, crew, folder, keep_tables=url is None)


def _environment(shop: Shop, orders: int, workers: int, at_least: float) -> dict[str, str]:
    """Tell the workers where they work, and how long a mail takes: so long that all together take some seconds."""
    mail_seconds = min(1.0, at_least * workers * CONCURRENCY / orders)
    return {URL: shop.holdfast.url, PREFIX: shop.prefix, MAIL_SECONDS: f"{mail_seconds:.4f}"}


@contextmanager
def _watched(shop: Shop, asked: bool) -> Iterator[str]:
    """Serve the dashboard where it was asked for; its address, or nothing."""
    if not asked:
        yield ""
        return
    # Late: it needs jinja2, which the demo without it does not.
    from holdfast.demo.window import window

    with window(shop) as address:
        yield address


def _clean_up(shop: Shop, crew: Crew, folder: Path, *, keep_tables: bool) -> None:
    crew.dismiss(2.0)
    if not keep_tables:
        shop.demolish()
    shop.close()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, where signals are ours to set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class Story:
    """The stages, in their order."""

    def __init__(self, shop: Shop, crew: Crew, console: Console, orders: int, workers: int, address: str = "") -> None:
        self.shop = shop
        self.crew = crew
        self.console = console
        self.orders = orders
        self.workers = workers
        self.address = address
        self.store = shop.holdfast.store
        self.killed = Killed()
        self.failure: BaseException | None = None
        self.draw: Callable[[], None] = _draw_nothing

    def tell(self, meddle: Callable[[Shop], None] | None = None) -> int:
        began = time.monotonic()
        self.shop.open()
        with closing(self.shop.connect()) as self.shown:
            self.open_the_shop()
            try:
                self.live_through_it()
            finally:
                self.shop.closing.set()
                self.placing.join()
        self.crew.dismiss()
        if meddle is not None:
            meddle(self.shop)
        code = self.prove(time.monotonic() - began)
        self.stay_open()
        return code

    def live_through_it(self) -> None:
        with self.progress():
            self.start_the_workers()
            self.kill_a_worker()
            self.see_the_leases_come_back()
            self.wait_until_quiet()
        self.replay_the_dead_letters()

    def say(self, text: str) -> None:
        self.console.print(f"• {text}")

    def open_the_shop(self) -> None:
        where = "an SQLite file" if self.store.embedded else redact(self.shop.holdfast.url)
        self.say(f"A shop opens on {where}.")
        if self.address:
            self.say(f"[bold]Open {self.address} in a browser[/] and watch: lag, workers, retries, dead letters.")
        self.say(f"{self.orders:,} orders come in, each with its receipt job in one transaction.")
        self.placing = threading.Thread(target=self._place_orders, daemon=True)
        self.placing.start()

    def start_the_workers(self) -> None:
        """Hire once work has piled up, so that there is something to hold when one is killed."""
        self.until("a third of the orders are in", lambda: len(self.shop.placed) >= self.orders // 3)
        for _ in range(self.workers):
            self.crew.hire()
        self.say(f"{self.workers} worker processes start, while orders go on coming in.")

    def _place_orders(self) -> None:
        try:
            self.shop.place_all(self.orders)
        except BaseException as error:
            self.failure = error

    @contextmanager
    def progress(self) -> Iterator[None]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        placed, sent = bar.add_task("orders", total=self.orders), bar.add_task("receipts", total=self.orders)

        def draw() -> None:
            bar.update(placed, completed=len(self.shop.placed))
            bar.update(sent, completed=self.receipts())

        self.draw = draw
        with bar:
            yield
        self.draw = _draw_nothing

    def receipts(self) -> int:
        return int(self.shop.column(self.shown, "select count(*) from shop_receipts")[0])

    def until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if self.failure is not None:
                raise Stuck(f"Placing orders failed: {self.failure!r}")
            if self.crew.hired and not self.crew.alive:
                raise Stuck(f"All workers ended before {what}.")
            if time.monotonic() > deadline:
                raise Stuck(f"Gave up after {PATIENCE:.0f} s, before {what}.")
            self.draw()
            time.sleep(LOOK)

    def kill_a_worker(self) -> None:
        self.until("a third of the receipts are sent", lambda: self.receipts() >= self.orders // 3)
        self.until("a worker was killed that holds leases", self._killed_one_that_holds_leases)
        self.crew.hire()

    def _killed_one_that_holds_leases(self) -> bool:
        """Freeze workers until one is caught with leases, and kill that one: nothing slips away in between."""
        for member in self.crew.alive:
            member.freeze()
            if self._leases_of(member):
                return self._killed(member)
            member.thaw()
        return False

    def _killed(self, member: Member) -> bool:
        member.kill()
        # A server finishes the statements that were already on their way to it.
        time.sleep(SETTLE)
        held = self._leases_of(member)
        if not held:
            self.crew.hire()
            return False
        self.killed = Killed(next(iter(held.values())), frozenset(held))
        self.say(f"{member.name} is killed with SIGKILL while it holds {_leases(len(held))}; another is hired.")
        return True

    def _leases_of(self, member: Member) -> dict[str, str]:
        leased = proof.all_jobs(self.store, Filter(states=("leased",)))
        return {job.id: str(job.leased_by) for job in leased if member.is_worker(job.leased_by)}

    def see_the_leases_come_back(self) -> None:
        began = time.monotonic()
        ended = Filter(states=("leased",), worker=self.killed.worker)
        self.until("the leases come back", lambda: self.store.run(admin.count_jobs(ended)) == 0)
        waited = time.monotonic() - began
        came = _leases(len(self.killed.held))
        self.say(f"{waited:.1f} s later {came} of {LEASE} s ran out: the others took the jobs over.")

    def wait_until_quiet(self) -> None:
        live = Filter(states=("pending", "leased"))

        def quiet() -> bool:
            return not self.placing.is_alive() and self.store.run(admin.count_jobs(live)) == 0

        self.until("every job has ended", quiet)
        self.say(f"{len(self.shop.placed):,} orders were placed and {len(self.shop.declined):,} rolled back.")

    def replay_the_dead_letters(self) -> None:
        for group in self.store.run(admin.dead_groups()):
            self.say(f"{group.count} dead letters: {group.error_type}: {group.error_message}")
        dead = Filter(states=("dead",))
        self.shop.set_rate(self.shown, FORGOTTEN, 7)
        if self.address and self.console.is_terminal and self._replayed_in_the_browser(dead):
            self.say("Somebody replayed them in the browser.")
        else:
            self.say(f"Somebody enters the rate of {FORGOTTEN} and replays them.")
            self.store.run(admin.replay(dead, limit=1_000, actor="demo"))
        self.wait_for_the_replayed()

    def _replayed_in_the_browser(self, dead: Filter) -> bool:
        """Give somebody time to replay the dead letters there."""
        self.say(f"The rate of {FORGOTTEN} is entered. Replay them on {self.address}dead, or wait a minute.")
        deadline = time.monotonic() + REPLAY_PATIENCE
        while time.monotonic() < deadline:
            if self.store.run(admin.count_jobs(dead)) == 0:
                return True
            time.sleep(LOOK)
        return False

    def stay_open(self) -> None:
        """Leave the dashboard there for those who watch, until Ctrl-C."""
        if not self.address or not self.console.is_terminal:
            return
        self.say(f"The dashboard stays at {self.address} until Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(1)

    def wait_for_the_replayed(self) -> None:
        live = Filter(states=("pending", "leased"))
        self.until("the replayed jobs have ended", lambda: self.store.run(admin.count_jobs(live)) == 0)

    def prove(self, seconds: float) -> int:
        kept = proof.promises(proof.read_books(self.shop, self.killed))
        self.console.print()
        self.console.print(proof.table(kept))
        broken = [promise.name for promise in kept if not promise.holds]
        if broken:
            self.console.print(f"[bold red]Broken: {'; '.join(broken)}[/]")
            return 1
        self.console.print(f"Every promise held, in {seconds:.0f} s.")
        return 0


def _draw_nothing() -> None:
    """Where there is no bar to move."""


def _leases(count: int) -> str:
    return "1 lease" if count == 1 else f"{count:,} leases"
