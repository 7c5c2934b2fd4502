"""Ask a process with a Django project for the promises of a module, once for each database, and tell each by name."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent


def names(module: str) -> list[str]:
    """List the promises of a module without importing it: it needs a Django project."""
    return re.findall(r"^@promise\ndef (\w+)\(", (HERE / f"{module}.py").read_text(), re.MULTILINE)


def entry(url: str) -> dict[str, Any]:
    """Write a URL as an entry of DATABASES."""
    if url.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    place = urlsplit(url)
    engine = "postgresql" if place.scheme.startswith("postgres") else "mysql"
    server = {"USER": place.username, "PASSWORD": place.password or "", "HOST": place.hostname, "PORT": place.port}
    return {"ENGINE": f"django.db.backends.{engine}", "NAME": place.path[1:], **server}


def environment(url: str, **said: Any) -> dict[str, str]:
    """Return the environment in which `taskshop` is on a database."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return clean | {"TASKSHOP": json.dumps({"DATABASE": entry(url), **said}), "PYTHONPATH": path}


@cache
def told(module: str, url: str) -> dict[str, str | None]:
    """Return what became of each promise of a module."""
    command = [sys.executable, "-W", "error", str(HERE / "inner.py"), module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment(url))
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found
