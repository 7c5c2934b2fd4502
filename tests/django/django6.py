"""Django 6, which our own environment cannot have while it runs on Python 3.11: an environment for each version, and
the source of the newest."""

import functools
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tests import servers
from tests.servers import TOOLS, Unavailable

# By the names that a summary gives to what is missing.
VERSIONS = {"Django 6.0": "6.0.10", "Django 6.1": "6.1.3"}
NEWEST = "Django 6.1"
OLDEST = (3, 12)
# What our package needs beside it, in this test.
ALSO = ("cronsim", "msgspec", "click", "rich", "jinja2", "psycopg[binary]")


def _interpreters() -> Iterator[str]:
    """List interpreters that may do: by their names, and where pyenv keeps them."""
    for minor in range(14, OLDEST[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(kept.glob("3.1[2-9].*/bin/python"), reverse=True))


def _is_new_enough(python: str) -> bool:
    told = subprocess.run(
        [python, "-c", "import sys, ensurepip, sqlite3; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=False,
    )
    # One of pyenv's names leads to nothing where that version is not chosen.
    return told.returncode == 0 and tuple(map(int, told.stdout.split())) >= OLDEST


def _find(name: str) -> Path:
    version = VERSIONS[name]
    folder = TOOLS / f"django-{version}"
    if folder.exists():
        return folder
    python = next(filter(_is_new_enough, _interpreters()), None)
    if python is None:
        raise Unavailable(name, "it needs Python 3.12 or later, and there is none")
    try:
        with servers.unpacked_apart(folder) as target:
            servers.run([python, "-m", "venv", str(target / "venv")])
            pip = [str(target / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            servers.run([*pip, "install", f"django=={version}", *ALSO])
            source = ["download", "--no-deps", "--no-binary", "django", "--dest", str(target), f"django=={version}"]
            servers.run([*pip, *source])
            [archive] = target.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                # Nothing else of the source is needed, and it is large.
                wanted = [one for one in packed.getmembers() if "/tests/tasks/" in one.name]
                packed.extractall(target, wanted, filter="data")
            archive.unlink()
    except (OSError, RuntimeError) as error:
        raise Unavailable(name, str(error)) from error
    return folder


for _name in VERSIONS:
    servers.finders[_name] = functools.partial(_find, _name)


def python(name: str = NEWEST) -> str:
    """Return the interpreter that has this Django. Raises: Unavailable."""
    # By `bin` of the folder: the environment was moved after it was made, which its interpreter takes well.
    return str(servers.need(name) / "venv" / "bin" / "python")


def tests() -> Path:
    """Return the folder of the newest Django's own tests, those of its Tasks. Raises: Unavailable."""
    return servers.need(NEWEST) / f"django-{VERSIONS[NEWEST]}" / "tests"
