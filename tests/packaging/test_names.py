"""On PyPI another project has the name `holdfast`: those who install by our words must get `holdfast-db`."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FILES = [
    *(
        file
        for part in ("src", "docs", "deploy", "tools", ".github")
        for file in (ROOT / part).rglob("*")
        if file.is_file()
    ),
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "Makefile", "Containerfile", "compose.yaml", "pyproject.toml")
    ),
]
SEEN = {".py", ".md", ".yml", ".yaml", ".toml", ".html", ".txt", ""}
# A requirement: the name, with or without extras, after pip install, uv add and the like, or in a list of requirements.
INSTALL = re.compile(r"(?:pip install|uv add|uv pip install|poetry add|pipx install)((?: +[^\n`#&;|]+)?)")


def lines() -> list[tuple[str, str]]:
    return [
        (f"{file.relative_to(ROOT)}:{number}", line)
        for file in FILES
        if file.suffix in SEEN and "__pycache__" not in file.parts
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
    ]


def wrong(line: str) -> bool:
    """Say whether a line would have the other project installed."""
    asked = " ".join(INSTALL.findall(line))
    return bool(re.search(r"(?<![\w./-])holdfast(?!-db|[\w/.-])", asked)) or bool(re.search(r"\bholdfast\[", line))


def test_nobody_is_told_to_install_the_other_project() -> None:
    told = lines()
    assert len([line for _, line in told if INSTALL.search(line)]) > 20
    assert [place for place, line in told if wrong(line)] == []


def test_the_other_project_would_be_found() -> None:
    assert wrong("$ pip install holdfast")
    assert wrong('run `pip install "holdfast[postgres]"`')
    assert wrong("uv add holdfast # now")
    assert not wrong('pip install "holdfast-db[postgres]" && holdfast init')
    assert not wrong("$ pip install .   # then `holdfast demo`")


def test_every_extra_that_somebody_is_told_of_is_there() -> None:
    named = {
        extra.strip()
        for _, line in lines()
        for extras in re.findall(r"holdfast-db\[([\w, -]+)\]|pip install ['\"]\.\[([\w, -]+)\]", line)
        for extra in "".join(extras).split(",")
    }
    assert {"postgres", "mysql", "dashboard"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_bill_of_materials_has_everything_that_the_lock_gives_an_application(tmp_path: Path) -> None:
    make = (ROOT / "Makefile").read_text("utf-8")
    [command] = re.findall(r"\$\(BIN\)/uv (export .+) --output-file", make)
    uv = Path(sys.executable).with_name("uv")
    file = tmp_path / "sbom.cdx.json"
    subprocess.run([uv, *command.split(), "--output-file", file], cwd=ROOT, check=True)
    bill = json.loads(file.read_text("utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "holdfast-db")
    listed = {part["name"] for part in bill["components"]}
    wanted = [
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ]
    names = {re.split(r"[\[<>=;]", line)[0].lower() for line in wanted}
    assert names <= listed
    assert not {"pytest", "ruff", "zensical", "hypothesis"} & listed
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
