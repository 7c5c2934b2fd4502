"""`python -m tests.soak` (make soak): a long run at a fixed rate under kills, cuts, a failover and a shard's move."""

import argparse
import sys
from pathlib import Path

from tests import servers
from tests.soak.report import figures, write
from tests.soak.run import soak

SHOWN = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="of load and trouble")
    parser.add_argument("--rate", type=float, default=100.0, help="jobs to enqueue in a second")
    parser.add_argument("--report", type=Path, default=servers.RUN / "soak", help="the folder that the report goes to")
    said = parser.parse_args(arguments)
    if said.seconds < 1 or said.rate <= 0:
        parser.error("--seconds must be 1 at least, and --rate more than 0")
    print(f"Soaking for {said.seconds:.0f} s at {said.rate:g} jobs a second, on two shards …", flush=True)
    outcome = soak(said.seconds, said.rate)
    broken = outcome.broken()
    path = write(outcome, broken, said.report)
    for name, value in figures(outcome).items():
        print(f"  {name}: {value}")
    for line in broken[:SHOWN]:
        print(f"broken: {line}")
    if len(broken) > SHOWN:
        print(f"… and {len(broken) - SHOWN:,} more")
    print(f"{len(broken):,} violations" if broken else "No promise was broken.", f"Report: {path}", sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
