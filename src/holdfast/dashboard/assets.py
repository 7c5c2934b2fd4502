"""The files that pages load: all of them our own or vendored, none from elsewhere; `static/VENDORED.md` has hashes."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

from holdfast.dashboard.guard import guarded
from holdfast.dashboard.http import Response

KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
NAMES = ("app.css", "app.js", "htmx.min.js", "uplot.min.js", "uplot.min.css", "icon.svg")
# An address names what is in the file, so it may be kept for good.
_KEPT = ("cache-control", "private, max-age=31536000, immutable")


@lru_cache(maxsize=len(NAMES))
def content(name: str) -> bytes:
    return files("holdfast.dashboard").joinpath("static", name).read_bytes()


@lru_cache(maxsize=len(NAMES))
def address(name: str) -> str:
    """Return the path of a file, with a part that changes with its content."""
    return f"static/{sha256(content(name)).hexdigest()[:12]}/{name}"


def served(path: str) -> Response | None:
    """Answer with a file; None where there is none of this path."""
    name = path.rpartition("/")[2]
    if name not in NAMES or path != address(name):
        return None
    return guarded(Response(200, content(name), KINDS[name.rpartition(".")[2]], (_KEPT,)), kept=True)
