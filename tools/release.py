"""Insist that a tag names the version of the source before it is released: `python -m tools.release v1.2.3`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def complaints(tag: str, root: Path = ROOT) -> list[str]:
    """Say what stands between the source and a release with this tag."""
    version = tag.removeprefix("v")
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    told = re.search(r'^__version__ = "(.+)"$', (root / "src/holdfast/__init__.py").read_text("utf-8"), re.MULTILINE)
    found = []
    if tag == version:
        found.append(f"the tag {tag} does not begin with v")
    if project != version:
        found.append(f"pyproject.toml says {project}, the tag {tag}")
    if told is None or told[1] != version:
        found.append(f"holdfast.__version__ is {told[1] if told else 'not there'}, the tag {tag}")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading `## [{version}] - YEAR-MONTH-DAY`")
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m tools.release TAG", file=sys.stderr)
        return 2
    found = complaints(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]} may be released", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
