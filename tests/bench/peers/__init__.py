"""The peers of `make bench`: other projects' queues and workflow engines, in environments of their own below .run/.

Versions are pinned in the requirements files, package-lock.json and river/go.mod. What cannot be had is named, never
left out in silence.
"""

from collections.abc import Callable, Sequence

from holdfast.bench.side import Spec
from tests.bench.peers.homes import GoHome, Home, NodeHome, Peer, PythonHome

# What a row needs, as in holdfast.bench.rows. PgQueuer logs what it finished, without the payload.
COMMON = frozenset({"one async", "many", "flow", "latency", "idle"})
# Jobs of one key one at a time, in order: procrastinate's lock, Graphile Worker's named queues, the policy
# key_strict_fifo of pg-boss. What it costs them grows with the jobs that wait, so that a smaller part of them flatters.
ORDERED = frozenset({"ordered", "one key"})
# huey takes a task off the table before it runs it, and adds one at a time.
SINGLE = frozenset({"one", "deleted", "latency", "idle"})
# Durable workflows: steps of runs, and runs of one step.
RUNS = frozenset({"one run", "steps", "one step"})

HOMES: tuple[Home, ...] = (
    PythonHome(
        ("requirements.txt",),
        (
            Peer(
                "procrastinate",
                "procrastinate_peer.py",
                COMMON | ORDERED | {"kept", "deleted"},
                0.05,
                shares=(("ordered", 0.02), ("one key", 0.005)),
            ),
            Peer("pgqueuer", "pgqueuer_peer.py", COMMON | {"kept"}),
        ),
    ),
    NodeHome(
        ("package.json", "package-lock.json"),
        (
            Peer(
                "graphile-worker",
                "graphile.mjs",
                COMMON | ORDERED | {"deleted"},
                shares=(("ordered", 0.5), ("one key", 0.01)),
            ),
            Peer("pg-boss", "pgboss.mjs", COMMON | ORDERED | {"kept"}, shares=(("ordered", 0.1), ("one key", 0.01))),
        ),
    ),
    GoHome(
        ("river/go.mod", "river/go.sum", "river/main.go", "river/serve.go"),
        (Peer("river", "peer", COMMON | {"kept"}, package="github.com/riverqueue/river"),),
    ),
    PythonHome(("requirements-awa.txt",), (Peer("awa", "awa_peer.py", COMMON | {"kept"}, 0.1, package="awa-pg"),)),
    PythonHome(("requirements-oban.txt",), (Peer("oban", "oban_peer.py", COMMON | {"kept"}, 0.1),), needs=(3, 12)),
    # An outbox: its one row is the relay's.
    PythonHome(
        ("requirements-faststream.txt",),
        (Peer("faststream-outbox", "faststream_peer.py", frozenset({"relay"}), 0.2),),
    ),
    PythonHome(
        ("requirements-dbos.txt",),
        (Peer("dbos", "dbos_peer.py", RUNS | {"signals"}, shares=(("steps", 0.1), ("one step", 0.03))),),
    ),
    PythonHome(
        ("requirements-absurd.txt",),
        (Peer("absurd", "absurd_peer.py", RUNS, package="absurd-sdk", shares=(("steps", 0.1), ("one step", 0.03))),),
    ),
    PythonHome(
        ("requirements-huey.txt",),
        (
            Peer("huey", "huey_peer.py", SINGLE, 0.2, ("SQLite",)),
            Peer("huey", "huey_peer.py", SINGLE, 0.05, ("MariaDB", "MySQL")),
        ),
    ),
)


def found(databases: Sequence[str], say: Callable[[str], None] = lambda _: None) -> tuple[list[Spec], dict[str, str]]:
    """Install the peers of these databases where that was not done yet; return those to be had, and a note for each."""
    specs: list[Spec] = []
    notes: dict[str, str] = {}
    for home in HOMES:
        here = [peer for peer in home.peers if set(peer.databases) & set(databases)]
        try:
            if here and not home.folder.exists():
                say(f"installing {', '.join(dict.fromkeys(peer.name for peer in here))}")
            specs += home.specs(databases) if here else []
        except (OSError, RuntimeError) as error:
            notes |= {peer.name: f"not measured: {error}" for peer in here}
        else:
            notes |= {peer.name: home.version(peer) for peer in here}
    return specs, notes
