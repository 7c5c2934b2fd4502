"""A primary and its standby, on loopback: copied, streaming, killed, promoted."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.proxy import Proxy
from tests.servers import HOST, Postgres, make_owned, run, unprivileged

SECONDS = 30.0


class Node(Postgres):
    """One of the two servers. Its processes can be looked up by what PostgreSQL calls them, and stopped."""

    def processes(self, title: str = "") -> list[int]:
        """List the server's own child processes, those with this word in their titles."""
        found: list[int] = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                words = (status.parent / "cmdline").read_bytes().decode(errors="replace")
            except (OSError, ValueError):
                continue  # it is gone
            if parent == self.pid and title in words:
                found.append(int(status.parent.name))
        return found

    def kill(self) -> None:
        """End the server as a power cut does: nobody is told, and every process of it at once."""
        others = self.processes()
        self.stop(signal.SIGKILL)
        for pid in others:
            send(pid, signal.SIGKILL)
        until("all its processes are gone", lambda: not any(map(runs, others)))


class Standby(Node):
    """A copy of the primary that follows it."""

    name = "standby"

    def __init__(self, port: int) -> None:
        super().__init__(settings={"wal_retrieve_retry_interval": "100ms"})
        self.follows = port

    def _prepare(self) -> None:
        if self.data.exists():
            return
        make_owned(self.data)
        source = ["--host", HOST, "--port", str(self.follows), "--username", "postgres"]
        copy = ["--pgdata", str(self.data), "--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]
        run([str(self.bin / "pg_basebackup"), *source, *copy], cwd=self.folder, **unprivileged())

    def promote(self) -> None:
        assert self.execute("select pg_promote(true, 30)") == [(True,)]


class Line(Proxy):
    """What the standby follows its primary through; its answers can be lost on the way."""

    is_deaf = False

    def _readers(self) -> tuple[Callable[[bytes], bytes | None], Callable[[bytes], bytes | None]]:
        return (lambda data: b"" if self.is_deaf else data), (lambda data: data)


class Pair:
    """A primary and a standby. Of a synchronous one every commit waits until the standby has it, too."""

    def __init__(self, *, synchronous: bool) -> None:
        self.primary = Node()
        self.line = Line(self.primary.port, protocol=None)
        self.standby = Standby(self.line.port)
        self._synchronous = synchronous

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            self.standby.start()
            until("the standby follows", lambda: self.followers() == [("streaming", "async")])
            if self._synchronous:
                self.make_synchronous()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        self.standby.discard()
        self.line.close()
        if not self.primary.running and (self.primary.data / "postmaster.pid").exists():
            # A killed server leaves shared memory behind, which it takes away when it starts again.
            self.primary.start()
        self.primary.discard()

    def make_synchronous(self) -> None:
        """Have commits wait for the standby from now on."""
        self.primary.execute("alter system set synchronous_standby_names = '*'")
        self.primary.execute("select pg_reload_conf()")
        until("the standby is synchronous", lambda: self.followers() == [("streaming", "sync")])

    def followers(self) -> list[tuple[object, ...]]:
        return self.primary.execute("select state, sync_state from pg_stat_replication")

    def urls(self, name: str) -> dict[str, str]:
        """Write the database's URL in each way that names both servers, the primary first or last."""
        a, b = f"{HOST}:{self.primary.port}", f"{HOST}:{self.standby.port}"
        ports = f"{self.standby.port},{self.primary.port}"
        return {
            "asked": f"postgresql://postgres@{a},{b}/{name}?target_session_attrs=read-write",
            "unasked": f"postgresql://postgres@{b},{a}/{name}",
            "settings": f"postgresql:///{name}?user=postgres&host={HOST},{HOST}&port={ports}&target_session_attrs=primary",
        }

    def caught_up(self) -> None:
        """Wait until the standby has all that is committed by now."""
        [[here]] = self.primary.execute("select pg_current_wal_insert_lsn()")
        reached = f"select pg_last_wal_replay_lsn() >= '{here}'"
        until("the standby has caught up", lambda: self.standby.execute(reached) == [(True,)])

    def lose_answers(self) -> None:
        """Let what is committed reach the standby, and nobody hear of it: commits wait for its answer in vain."""
        self.line.is_deaf = True

    def hold_back(self) -> None:
        """Let nothing more reach the standby: what is committed from now on is on the primary alone."""
        held = self.primary.processes("walsender")
        assert held, "nothing is sent to a standby"
        for pid in held:
            send(pid, signal.SIGSTOP)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what: str, reached: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.1)
