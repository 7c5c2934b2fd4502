"""`python -m tests.histories` (make histories): a random history on each database, and the checker's word on it."""

import argparse
import random
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from holdfast.errors import redact
from tests.faults.shared import DATABASES, own_database
from tests.histories import acts
from tests.histories.checker import check
from tests.histories.choices import OTHERS
from tests.histories.report import table, told
from tests.histories.run import Orders, run


def main(arguments: list[str] | None = None) -> int:
    said = parsed(arguments)
    console = Console(highlight=False, soft_wrap=True)
    broken = 0
    for name in said.on.split(","):
        # One server at a time: each takes what the machine has.
        with ExitStack() as stack:
            ground = stack.enter_context(own_database(name))
            if ground is None:
                continue
            console.print(f"{name}: seed {said.seed}, {said.seconds:.0f} s of trouble on {redact(ground.url)} …")
            restart = ground.server.restart if ground.server is not None and said.restart else None
            keep = said.keep / name if said.keep is not None else None
            history = run(Orders(ground.url, said.seconds, said.seed, said.without, restart, keep))
            violations = check(history)
            console.print(table(history, violations))
            for line in told(history, violations):
                console.print(line, markup=False)
            broken += len(violations)
    console.print(f"{broken:,} violations" if broken else "No promise was broken.")
    return 1 if broken else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="of trouble, for each database")
    parser.add_argument("--on", default=",".join(DATABASES), help=f"some of {', '.join(DATABASES)}")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="repeats what can be repeated of a run")
    parser.add_argument(
        "--without",
        type=lambda text: frozenset(text.split(",")),
        default=frozenset(),
        help=f"leave out some of {', '.join((*acts.ALL, *OTHERS))}",
    )
    parser.add_argument(
        "--keep", type=Path, help="a folder that takes what the processes wrote, a folder each database"
    )
    parser.add_argument("--no-restart", dest="restart", action="store_false", help="do not crash the server")
    said = parser.parse_args(arguments)
    if strange := [name for name in said.on.split(",") if name not in DATABASES]:
        parser.error(f"--on: {strange[0]} is not one of {', '.join(DATABASES)}")
    if strange := said.without - {*acts.ALL, *OTHERS}:
        parser.error(f"--without: {sorted(strange)[0]} is not known")
    return said


if __name__ == "__main__":
    sys.exit(main())
