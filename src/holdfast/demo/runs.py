"""What `holdfast demo --runs` tells: an order that waits for an approval while its workers are killed, step by step.

The order charges a card, reserves its goods in the shop's own database, waits for a person, and is packed. One worker
is killed while it charges, another while it packs; in the end the steps are counted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast import Holdfast, Retry, Run
from holdfast.demo.crew import Crew
from holdfast.demo.verdict import told
from holdfast.runs import drawn, timeline

URL, BANK = "HOLDFAST_URL", "HOLDFAST_DEMO_BANK"
LEASE = 2.0
# How long a step takes, so that its worker is there to be killed.
STEP_SECONDS = 1.5
PATIENCE, LOOK = 60.0, 0.05
ORDER = "order-1"


class Late(Exception):
    """A stage of the story did not end."""


def application(url: str, bank: Path) -> Holdfast:
    """Make the shop as its own process and its workers have it. What reaches the world outside is a line in a file."""
    hf = Holdfast(url, busy_timeout=20)

    async def tell_the_world(what: str, key: str) -> None:
        with bank.open("ab", buffering=0) as file:
            file.write(f"{what} {key} {os.getpid()}\n".encode())
        await asyncio.sleep(STEP_SECONDS)

    async def charge_card(key: str) -> str:
        await tell_the_world("charge", key)
        return f"receipt of {key}"

    def reserve(tx: Any, order: str) -> int:
        tx.execute("update stock set left_over = left_over - 1")
        tx.execute("insert into reservations (run) values (?)", (order,))
        return 1

    async def pack(key: str) -> None:
        await tell_the_world("pack", key)

    retry = Retry(first_delay=0.1, max_delay=0.1)

    @hf.workflow(lease=LEASE, retry=retry)
    async def fulfil(run: Run) -> str:
        receipt = await run.step(charge_card, f"{run.id}/charge")
        await run.transaction(reserve, run.id)
        async with asyncio.timeout(3 * 86400):
            by = await run.signal("approved")
        await run.step(pack, f"{run.id}/pack")
        return f"{receipt}, approved by {by}"

    return hf


def run(*, console: Console | None = None) -> int:
    """Tell the story on an SQLite file of its own, and return the exit code: 0 where every promise held, else 1."""
    console = console or Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return Story(f"sqlite:///{folder}/shop.db", folder, console).tell()
    except Late as error:
        console.print(f"[bold red]{error}[/]")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Story:
    """The stages, in their order."""

    def __init__(self, url: str, folder: Path, console: Console) -> None:
        self.bank = folder / "bank"
        self.bank.touch()
        self.hf = application(url, self.bank)
        self.order = self.hf.run(ORDER)
        self.crew = Crew("holdfast.demo.run_worker", {URL: url, BANK: str(self.bank)}, folder)
        self.console = console
        self.killed: set[int] = set()

    def say(self, text: str) -> None:
        self.console.print(f"• {text}")

    def tell(self) -> int:
        try:
            self.hf.migrate()
            self._tell()
            return self.prove()
        finally:
            self.crew.dismiss()
            self.hf.close()

    def _tell(self) -> None:
        workflow: Any = self.hf.handlers["fulfil@1"]
        with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
            connection.execute("create table stock (left_over integer not null)")
            connection.execute("insert into stock values (10)")
            connection.execute("create table reservations (run text not null)")
            connection.execute("begin immediate")
            workflow.start(id=ORDER, tx=connection)
            connection.execute("commit")
        self.say(f"{ORDER} is started, in the transaction that opens the shop: charge, reserve, wait, pack.")
        self.crew.hire("worker1")
        self._kill_during("charge", "worker1", "worker2")
        self._until("the order waits for its approval", lambda: self.order.status() == "waiting")
        self.say("The order waits for a person, for three days if need be. It is a row: no worker holds it.")
        with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
            connection.execute("begin immediate")
            self.hf.signal(ORDER, "approved", "ada", tx=connection, idempotency_key="approval")
            self.hf.signal(ORDER, "approved", "ada", tx=connection, idempotency_key="approval")
            connection.execute("commit")
        self.say("ada approves it, by a double click, in a transaction of the shop's.")
        self._kill_during("pack", "worker2", "worker3")
        self._until("the order is done", lambda: self.order.status() == "done")
        self.say(f"It is done: {self.order.result(0)}.")

    def _kill_during(self, what: str, victim: str, successor: str) -> None:
        """Kill a worker in the middle of a step, and hire another one."""
        self._until(f"{victim} begins to {what}", lambda: any(one[0] == what for one in self.calls()))
        [member] = [one for one in self.crew.alive if one.name == victim]
        member.kill()
        self.killed.add(member.pid)
        self.say(f"{victim} is killed with SIGKILL in the middle of the step {what}.")
        self.crew.hire(successor)
        self.say(f"{successor} is hired. It takes the order over when its lease ends, and goes on at that step.")

    def calls(self) -> list[tuple[str, str, int]]:
        """Read what has reached the world outside: what, under which key, from which process."""
        lines = [line.split() for line in self.bank.read_text("utf-8").splitlines()]
        return [(what, key, int(pid)) for what, key, pid in lines]

    def _until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise Late(f"Gave up after {PATIENCE:.0f} s, before {what}.\n{self.crew.last_words()}")
            time.sleep(LOOK)

    def prove(self) -> int:
        """Count the steps, and say whether every promise held."""
        view, rows = self.hf.store.run(timeline(ORDER))
        self.console.print()
        for line in drawn(view, rows):
            self.console.print(line, markup=False)
        recorded, calls = Counter(row.key for row in rows), self.calls()
        with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
            [(left,)] = connection.execute("select left_over from stock").fetchall()
            [(reserved,)] = connection.execute("select count(*) from reservations").fetchall()
        called = Counter(what for what, *_ in calls)
        again = [pid for what in ("charge", "pack") for pid in [one[2] for one in calls if one[0] == what][:-1]]
        promises = [
            ("everything is recorded once", len(rows), set(recorded.values()) == {1}),
            ("steps recorded", 2, recorded.keys() >= {"charge_card", "pack"}),
            ("calls of these steps", called.total(), called.keys() == {"charge", "pack"}),
            ("called again: only by killed workers", len(again), set(again) <= self.killed and len(again) == 2),
            ("keys by which the bank can tell", len({key for _, key, _ in calls}), len({k for _, k, _ in calls}) == 2),
            ("goods reserved, exactly once", reserved, (reserved, left) == (1, 9)),
            ("approvals sent twice and taken once", recorded["signal:approved"], recorded["signal:approved"] == 1),
        ]
        return told(self.console, "What the order did", promises)
