"""A PHP program on the queue tables, as a child process."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.store.dialects.sqlite import path_of
from tests import servers
from tests.servers import Unavailable

NAME = "PHP"
PROGRAM = Path(__file__).resolve().parent / "peer.php"
NEEDED = {"pdo_sqlite", "pdo_mysql", "json"}
PACKAGES = ("php-cli", "php-sqlite3", "php-mysql")


def php() -> str:
    """Find PHP with its database drivers, or install Debian's where we may."""
    return str(servers.need(NAME))


def _find() -> Path:
    try:
        return _php()
    except (OSError, RuntimeError) as error:
        raise Unavailable(NAME, str(error)) from error


servers.finders[NAME] = _find


def _php() -> Path:
    if not _has_drivers():
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable(NAME, "no php with pdo_sqlite and pdo_mysql, and apt-get installs only for root")
        servers.apt_get("install", "--yes", "--no-install-recommends", *PACKAGES)
        if not _has_drivers():
            raise Unavailable(NAME, "its packages have no pdo_sqlite and pdo_mysql")
    return Path(shutil.which("php") or "php")


def _has_drivers() -> bool:
    if not shutil.which("php"):
        return False
    return set(servers.run(["php", "-m"]).lower().split()) >= NEEDED


class Php:
    """Runs the commands of peer.php on one database."""

    def __init__(self, url: str) -> None:
        self._program = php()
        if url.startswith("sqlite"):
            self._where = [f"sqlite:{path_of(url)}", ""]
        else:
            parts = urlsplit(url)
            dsn = f"mysql:host={parts.hostname};port={parts.port};dbname={parts.path.lstrip('/')};charset=utf8mb4"
            self._where = [dsn, parts.username or ""]

    def start(self, command: str, **arguments: Any) -> "subprocess.Popen[str]":
        """Start a command without waiting for it; `answer` reads what it came to."""
        return subprocess.Popen(
            [self._program, str(PROGRAM), *self._where, command, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, command: str, **arguments: Any) -> Any:
        return answer(self.start(command, **arguments))


def answer(process: "subprocess.Popen[str]") -> Any:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, f"{out}\n{err}"
    return json.loads(out)
