"""The real durable engine of npm, as a child process that tests speak to in JSON lines."""

import contextlib
import filecmp
import hashlib
import itertools
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from tests import servers
from tests.servers import TOOLS, Unavailable

HERE = Path(__file__).resolve().parent / "node"
NAME = "the durable engine of npm"
PATIENCE = 30.0


def installed() -> Path:
    """Install the pinned packages once below .run/ and return their folder.

    Raises: Unavailable where there is no Node of version 20 or later, or where npm cannot fetch them.
    """
    return servers.need(NAME)


def _find() -> Path:
    try:
        return _installed()
    except (OSError, RuntimeError) as error:
        raise Unavailable(NAME, str(error)) from error


servers.finders[NAME] = _find


def _installed() -> Path:
    if not shutil.which("node") or not shutil.which("npm"):
        raise Unavailable(NAME, "node and npm are not installed")
    version = servers.run(["node", "--version"]).strip()
    if int(version.lstrip("v").split(".")[0]) < 20:
        raise Unavailable(NAME, f"it needs Node 20, here is {version}")
    target = TOOLS / f"durable-engine-{_lock_digest()}"
    if not target.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=TOOLS))
        try:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, folder)
            servers.run(["npm", "ci", "--legacy-peer-deps", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)
            if not target.exists():
                folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    # Node looks for packages beside the script, so the scripts go beside them; another run may be reading them there.
    for ours in HERE.glob("*.mjs"):
        script = target / ours.name
        if not script.exists() or not filecmp.cmp(ours, script, shallow=False):
            shutil.copy(ours, script)
    return target


def _lock_digest() -> str:
    return hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]


class Engine:
    """A running engine; every call is answered by the line with its number."""

    def __init__(self, url: str, prefix: str = "durable", poll_ms: int = 20, isolation: str = "") -> None:
        self._ids = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        # Node's drivers do not know every spelling of ours.
        url = url.replace("mariadb://", "mysql://")
        self._process = subprocess.Popen(
            ["node", "engine.mjs", url, prefix, str(poll_ms), isolation],
            cwd=installed(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=servers.plain_environment(),
        )
        self._errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        assert self._said.get(timeout=PATIENCE) == {"ready": True}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            number = line.pop("id", None)
            self._answers[number].put(line) if number in self._answers else self._said.put(line)
        for waiting in self._answers.values():
            waiting.put({"died": True})

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += list(self._process.stderr)

    def ask(self, cmd: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = queue.Queue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"cmd": cmd, "id": number, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._answers[number].get(timeout=PATIENCE)
        assert not answer.get("died"), f"the engine died: {list(self._said.queue)} {self._errors}"
        return answer

    def start(self, run: str, step: str, value: Any = None, opts: Any = None, **options: Any) -> None:
        answer = self.ask("start", run=run, step=step, input=value, options=options, opts=opts)
        assert answer == {"run": run, "started": True}, answer

    def wait(self, run: str, seconds: float = 15.0) -> dict[str, Any]:
        """Wait until a run is over and return what came of it."""
        found = self.ask("wait", run=run, ms=int(seconds * 1000))
        assert not found.get("late"), f"run {run} is {found['status']} after {seconds:g} s"
        return found

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.alive:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write('{"cmd":"close"}\n')
                self._process.stdin.flush()
                self._process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
