"""Workers of other makers as child processes: the npm packages' and PyPI's, for steps that our engine dispatches."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests import servers
from tests.foreign import engine as engines
from tests.servers import TOOLS, Unavailable

PYPI = "durable-worker of PyPI"
VERSION = "0.26.1"
PATIENCE = 60.0
HERE = Path(__file__).resolve().parent


def _find_pypi() -> Path:
    """Fetch the package into a folder of its own: it is no part of our environment, and has no dependencies itself."""
    folder = TOOLS / f"durable-worker-{VERSION}"
    try:
        if not folder.exists():
            with servers.unpacked_apart(folder) as target:
                python = ["--python", sys.executable, "--target", str(target)]
                uv = str(Path(sys.executable).with_name("uv"))
                servers.run([uv, "pip", "install", "--quiet", "--no-deps", *python, f"durable-worker=={VERSION}"])
    except (OSError, RuntimeError) as error:
        raise Unavailable(PYPI, str(error)) from error
    return folder


servers.finders[PYPI] = _find_pypi


class Peer:
    """One worker process; what it does it notes in a file."""

    def __init__(self, command: list[str], cwd: Path, notes: Path) -> None:
        self.notes = notes
        # A file, because nobody reads it while the worker runs: one that has filled a pipe would wait for ever.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=servers.plain_environment(),
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert json.loads(said or "{}") == {"ready": True}, said + self.errors()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def errors(self) -> str:
        self.process.kill()
        self.process.wait()
        self._stderr.seek(0)
        return self._stderr.read()

    def noted(self, start: str = "") -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in lines if line.startswith(start)]

    def wait_for_note(self, start: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := self.noted(start):
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"nobody noted {start!r}: {self.noted()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def node_worker(notes: Path, **said: Any) -> Peer:
    """Start a worker of the npm packages; `url` or `sqs` says where its tasks are."""
    if "url" in said:
        # Node's drivers do not know every spelling of ours; in MySQL's usual isolation its claims deadlock.
        said["url"] = said["url"].replace("mariadb://", "mysql://")
        said.setdefault("isolation", "read committed")
    return Peer(["node", "worker.mjs", json.dumps({"notes": str(notes), **said})], engines.installed(), notes)


def pypi_worker(notes: Path, **said: Any) -> Peer:
    """Start a worker of PyPI's package."""
    if "url" in said:
        said["url"] = said["url"].replace("mariadb://", "mysql://")
        said["dialect"] = "mysql" if said["url"].startswith("mysql") else "postgres"
    said |= {"folder": str(servers.need(PYPI)), "notes": str(notes)}
    return Peer([sys.executable, str(HERE / "pypi_worker.py"), json.dumps(said)], HERE, notes)
