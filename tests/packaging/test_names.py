"""On PyPI another project has the name `holdfast`: those who install by our words must get `holdfast-db`."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from holdfast.values.words import install_hint

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


def without_a_clone(text: str) -> list[int]:
    """List the lines that say how a release is installed, where none near by says what to do until there is one."""
    lines = text.splitlines()
    told = [n for n, line in enumerate(lines) if "holdfast-db" in " ".join(INSTALL.findall(line))]
    near = {n: " ".join(" ".join(lines[max(n - 2, 0) : n + 6]).split()) for n in told}
    return [n + 1 for n in told if "first release" not in near[n]]


def test_wherever_the_release_is_installed_one_reads_what_to_do_until_there_is_one() -> None:
    pages = [file for file in FILES if file.suffix in {".py", ".md", ".html"} and file.name != "releasing.md"]
    texts = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in pages}
    assert len([text for text in texts.values() if "first release" in text]) > 15
    assert {name: missing for name, text in texts.items() if (missing := without_a_clone(text))} == {}


def test_a_page_that_tells_of_the_release_alone_would_be_found() -> None:
    page = '# Kafka\n\n```console\n$ pip install "holdfast-db[kafka]"     # aiokafka\n```\n\n'
    assert without_a_clone(page + "Then:\n") == [4]
    assert without_a_clone(page + 'Until the first release: `pip install ".[kafka]"` in a clone.\n') == []
    assert without_a_clone("rule = \"pip install 'holdfast-db[dashboard]'\"") == [1]
    assert install_hint("mysql").startswith('pip install "holdfast-db[mysql]"')
    assert without_a_clone(install_hint("mysql")) == []


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
