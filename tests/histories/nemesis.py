"""What happens to the processes and to their sessions: killed, stopped, cut, one thing after the other, at random."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.demo.crew import Crew, Member
from holdfast.store import Store
from tests.faults.shared import file_is_held
from tests.histories.acts import LEASE
from tests.histories.log import Log
from tests.proxy import Proxy

PAUSE = (0.15, 0.6)
# What a worker gets to end by itself before it is killed all the same.
STOPPING = 30.0
# How many victims have begun their work, of ten: on a busy machine nothing would ever come of it otherwise.
MATURE = 9
# Exit codes that somebody asked for: killed, ended by a handler, stopped, also before it could do so in order; 4 is a
# database out of reach at the start.
EXPECTED = frozenset({-signal.SIGKILL, 9, 0, -signal.SIGTERM, 4})

SESSIONS = {
    "postgres": "select pid, state from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()",
    "mysql": "select id, command from information_schema.processlist where db = database() and id <> connection_id()",
}
CUT = {"postgres": "select pg_terminate_backend({})", "mysql": "kill connection {}"}


@dataclass
class Cast:
    """The processes of a run: workers, enqueuers and people, each crew with the number it is kept at."""

    workers: dict[Crew, int]
    others: dict[Crew, int]
    stopping: dict[Member, float] = field(default_factory=dict)

    def hire(self, crew: Crew) -> None:
        crew.hire(f"{crew.log.parent.name}{crew.hired + 1}")

    def everyone(self) -> dict[Crew, int]:
        return self.workers | self.others


class Nemesis(threading.Thread):
    """Hurts a cast until it is told to stop, and hires somebody new for each that is gone."""

    def __init__(
        self, cast: Cast, store: Store, log: Log, seed: str, proxy: Proxy | None, restart: Callable[[], None] | None
    ) -> None:
        super().__init__(daemon=True)
        self.cast = cast
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._store = store
        self._log = log
        self._random = random.Random(seed)
        self._proxy = proxy
        self._restart = restart
        self._frozen: dict[Member, float] = {}
        self._buried: set[Member] = set()
        self._deeds = self._known_deeds()

    def _known_deeds(self) -> dict[Callable[[], None], int]:
        deeds: dict[Callable[[], None], int] = {
            self._kill_worker: 4,
            self._kill_child: 1,
            self._kill_other: 1,
            self._freeze: 2,
            self._stop_worker: 1,
        }
        if not self._store.embedded:
            deeds[self._cut_sessions] = 4
        if self._proxy is not None:
            deeds |= {self._lose_replies: 3, self._reset_lines: 1}
        return deeds

    def run(self) -> None:
        try:
            self._hire()
            while not self.stopped.wait(self._random.uniform(*PAUSE)):
                self._thaw(time.monotonic())
                self._hire()
                self._random.choices(list(self._deeds), list(self._deeds.values()))[0]()
            self._thaw(float("inf"))
        except BaseException as error:
            self.failure = error

    def restart_server(self) -> None:
        """Crash the server and start it again."""
        if self._restart is not None:
            self._log.write("restarts the server")
            self._restart()

    # People come and go

    def _hire(self) -> None:
        """Bury the dead, and keep each crew at its number."""
        for crew, count in self.cast.everyone().items():
            for member in crew.members:
                if not member.alive and member not in self._buried:
                    self._bury(crew, member)
            for member, deadline in list(self.cast.stopping.items()):
                if member.alive and time.monotonic() > deadline:
                    self._kill(member, "killed a worker that would not stop")
            while len([member for member in crew.alive if member not in self.cast.stopping]) < count:
                self.cast.hire(crew)

    def _bury(self, crew: Crew, member: Member) -> None:
        self._buried.add(member)
        code = member.process.returncode
        self._log.write("buried", name=member.name, victim=member.pid, code=code)
        if code not in EXPECTED:
            self._log.write("ended by itself", name=member.name, victim=member.pid, code=code, said=crew.last_words(40))

    def _some(self, crews: dict[Crew, int]) -> Member | None:
        free = [m for crew in crews for m in crew.alive if m not in self._frozen and m not in self.cast.stopping]
        mature = self._random.randrange(10) < MATURE
        awake = [member for member in free if not mature or self._log.began(member.name)]
        return self._random.choice(awake) if awake else None

    # Deeds

    def _kill_worker(self) -> None:
        victim = self._some(self.cast.workers)
        if victim is None:
            return
        if self._store.embedded:
            # Stopped first, so that it can be seen whether it, or another, is in the middle of a write.
            victim.freeze()
            held = file_is_held(self._store)
            self._kill(victim, "killed a worker in a write" if held else "killed a worker")
            return
        self._kill(victim, "killed a worker")

    def _kill_other(self) -> None:
        victim = self._some(self.cast.others)
        if victim is not None:
            self._kill(victim, "killed an enqueuer or a person")

    def _kill_child(self) -> None:
        """Kill one process of a worker that has several: its parent starts another."""
        parents = [member for crew in self.cast.workers for member in crew.alive]
        children = [child for parent in parents for child in children_of(parent.pid)]
        if children:
            victim = self._random.choice(children)
            self._log.write("killed a child", victim=victim)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def _kill(self, victim: Member, what: str) -> None:
        self._log.write(what, name=victim.name, victim=victim.pid)
        victim.kill()
        self._frozen.pop(victim, None)
        self.cast.stopping.pop(victim, None)

    def _freeze(self) -> None:
        """Stop a process for longer than a lease."""
        victim = self._some(self.cast.everyone() if self._random.random() < 0.3 else self.cast.workers)
        if victim is None or self._frozen:
            return
        self._log.write("stopped", name=victim.name, victim=victim.pid)
        victim.freeze()
        self._frozen[victim] = time.monotonic() + LEASE * self._random.uniform(1.1, 1.8)

    def _thaw(self, now: float) -> None:
        for member in [member for member, end in self._frozen.items() if end <= now]:
            del self._frozen[member]
            self._log.write("continued", name=member.name, victim=member.pid)
            member.thaw()

    def _stop_worker(self) -> None:
        """Ask a worker to end, as a deployment does."""
        victim = self._some(self.cast.workers)
        if victim is not None:
            self._log.write("asked a worker to stop", name=victim.name, victim=victim.pid)
            self.cast.stopping[victim] = time.monotonic() + STOPPING
            victim.process.terminate()

    def _cut_sessions(self) -> None:
        """End some sessions on the server, those in the middle of a statement or a transaction first."""
        name = self._store.dialect.name
        with suppress(Exception), closing(self._store.dialect.connect(self._store.url)) as connection:
            sessions = list(connection.execute(SESSIONS[name]).fetchall())
            busy = [one for one, state in sessions if state not in ("idle", "Sleep", None)]
            chosen = busy if busy and self._random.random() < 0.6 else [one for one, _ in sessions]
            for session in self._random.sample(chosen, min(len(chosen), self._random.randint(1, 3))):
                self._log.write("cut a session", session=session, busy=session in busy)
                with suppress(Exception):
                    connection.execute(CUT[name].format(session))

    def _lose_replies(self) -> None:
        """Let a statement reach the server, lose its answer, and keep its client waiting for a while."""
        assert self._proxy is not None
        before = self._proxy.cuts
        if self._proxy.protocol is None:
            # The answers of this protocol are not read: what is on its way for long is lost with the connection.
            self._proxy.latency(30)
            time.sleep(0.05)
            self._proxy.reset_all()
        else:
            self._proxy.drop_reply(lambda tag: tag not in ("BEGIN", "SELECT 0"))
            time.sleep(0.2)
        self._log.write("lost replies", count=self._proxy.cuts - before)
        self._proxy.blackhole()
        time.sleep(self._random.uniform(0.05, 0.4))
        self._proxy.heal()

    def _reset_lines(self) -> None:
        assert self._proxy is not None
        self._log.write("reset the lines")
        self._proxy.reset_all()


def children_of(parent: int) -> list[int]:
    """List the processes that a living process of ours has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, its_parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(its_parent) == parent and state != "Z":
                    found.append(int(entry.name))
    return found
