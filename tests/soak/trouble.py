"""What is done to a soak while it runs: workers killed, connections cut, keys moved, a server failed over."""

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from holdfast.demo.crew import Crew, Member
from holdfast.errors import Conflict, HoldfastError
from tests.soak.app import ENQUEUER, VETERAN
from tests.soak.ground import SHARDS, Ground

MORTALS = 2
# A second change of the shards needs the first to have arrived, which takes a minute at least.
LONG = 300.0


@dataclass(frozen=True)
class Deed:
    """Something that was done, and when, in seconds since the begin."""

    at: float
    what: str
    detail: str = ""


@dataclass
class Deeds:
    """All that was done, and who ended without being told to."""

    began: float = field(default_factory=time.monotonic)
    wall: datetime = field(default_factory=lambda: datetime.now(UTC))
    done: list[Deed] = field(default_factory=list[Deed])

    def add(self, what: str, detail: str = "") -> None:
        self.done.append(Deed(time.monotonic() - self.began, what, detail))

    def count(self, what: str) -> int:
        return sum(deed.what == what for deed in self.done)


class Trouble:
    """Makes trouble when it is due: call `step` every now and then."""

    def __init__(self, ground: Ground, crew: Crew, deeds: Deeds, seconds: float) -> None:
        self._ground, self._crew, self._deeds = ground, crew, deeds
        self._pace = min(10.0, max(2.5, seconds / 20))
        now = time.monotonic()
        self._kill_at, self._cut_at = self._soon(now), self._soon(now)
        self._heal_at = float("inf")
        moves = (0.25, 0.75) if seconds >= LONG else (0.25,)
        self._moves = [now + part * seconds for part in moves]
        self._fail_over_at = now + seconds / 2
        self._killed: list[Member] = []

    def _soon(self, now: float) -> float:
        return now + random.uniform(0.5, 1.5) * self._pace

    def step(self) -> None:
        now = time.monotonic()
        self._replace_the_dead()
        if now >= self._heal_at:
            self._ground.heal()
            self._heal_at = float("inf")
        if now >= self._kill_at:
            self._kill()
            self._kill_at = self._soon(now)
        if now >= self._cut_at:
            self._cut(now)
            self._cut_at = self._soon(now)
        if self._moves and now >= self._moves[0]:
            self._move(now)
        if now >= self._fail_over_at:
            self._fail_over_at = float("inf")
            self._ground.fail_over()
            self._deeds.add("failover", "primary of shard 0 killed, standby promoted")

    def _replace_the_dead(self) -> None:
        """Start a worker for each that ended by itself, as a supervisor does: its database may be away at its start."""
        for member in self._crew.members:
            if not member.alive and member.name.startswith("mortal") and member not in self._killed:
                self._killed.append(member)
                self._deeds.add("ended by itself", f"{member.name} with {member.process.returncode}")
                self._hire()

    def _hire(self) -> None:
        self._crew.hire(f"mortal{self._crew.hired}")

    def _kill(self) -> None:
        mortal = [member for member in self._crew.alive if member.name not in (ENQUEUER, VETERAN)]
        if mortal:
            victim = random.choice(mortal)
            victim.kill()
            self._killed.append(victim)
            self._deeds.add("kill", victim.name)
            self._hire()

    def _cut(self, now: float) -> None:
        shard = random.randrange(SHARDS)
        way = self._ground.way(shard)
        how = random.choice(("reset", "lost commits", "silence", "slow"))
        if how == "reset":
            way.reset_all()
        elif how == "lost commits":
            way.cut_commit_reply(times=3)
            self._heal_at = now + 2.0
        elif how == "silence":
            way.blackhole()
            self._heal_at = now + random.uniform(0.5, 2.5)
        else:
            way.latency(random.uniform(10, 60))
            self._heal_at = now + 2.0
        self._deeds.add("cut", f"{how} of shard {shard}")

    def _move(self, now: float) -> None:
        try:
            self._deeds.add("move", self._ground.move())
            del self._moves[0]
        except Conflict:
            # What moved before has not arrived.
            self._moves[0] = now + 5.0
        except HoldfastError as error:
            self._deeds.add("move failed", str(error))
            self._moves[0] = now + 1.0
