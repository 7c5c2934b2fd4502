"""Ask a process with a Django project which promises of some modules are broken."""

import json
import os
import re
import subprocess
import sys
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


def broken(url: str, *modules: str, python: str = sys.executable, **said: Any) -> str:
    """Return the promises that were broken, each with its traceback; `said` goes into the settings."""
    command, env = [python, "-W", "error", str(HERE / "inner.py"), *modules], environment(url, **said)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    # An empty run would prove nothing.
    assert sorted(found) == sorted(name for module in modules for name in names(module))
    return "".join(f"{name}:\n{failure}\n" for name, failure in found.items() if failure)
