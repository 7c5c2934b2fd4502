"""The command `holdfast`: a probe that asks whether a worker is alive must not load what a worker loads.

`holdfast worker-alive FILE` runs every few seconds, in each container: 20 ms of CPU instead of 400.
"""

import os
import sys
import time

USAGE = "usage: holdfast worker-alive FILE [--within SECONDS]"


def check(path: str, within: float) -> int:
    """Tell by the exit code whether a file was touched in the last seconds; say why where it was not."""
    try:
        age = time.time() - os.stat(path).st_mtime
    except OSError as error:
        sys.stderr.write(f"not alive: {error.strerror}: {path}\n")
        return 1
    if age > within:
        sys.stderr.write(f"not alive: {path} was touched {age:.0f} seconds ago\n")
        return 1
    return 0


def _alive(words: list[str]) -> int:
    within = 60.0
    try:
        if "--within" in words:
            place = words.index("--within")
            within = float(words[place + 1])
            words = words[:place] + words[place + 2 :]
        [path] = words
    except (ValueError, IndexError):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    return check(path, within)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["worker-alive"] and not {"-h", "--help"} & set(words):
        sys.exit(_alive(words[1:]))
    from holdfast.cli import main as run

    run()
