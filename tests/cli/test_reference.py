"""docs/reference/cli.md names every command, every option and every exit code; docs/operations.md every check."""

import re
from pathlib import Path

import click
import pytest

from holdfast.cli.checks import CHECKS
from holdfast.cli.shared import Exit
from tests.cli.test_usage import commands

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0].strip("# "): part
    for part in re.split(r"^(?=##+ )", TEXT, flags=re.MULTILINE)
    if part.startswith("#")
}
EVERYWHERE = SECTIONS["Options of every command"]


def section_of(words: str) -> str:
    title = f"holdfast {words}"
    assert title in SECTIONS, f"docs/reference/cli.md has no section `{title}`: write one"
    return SECTIONS[title]


@pytest.mark.parametrize("words, command", list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_is_documented(words: str, command: click.Command) -> None:
    section = section_of(words)
    known = EVERYWHERE + section + (SECTIONS["Filters"] if "[filters](#filters)" in section.replace("\n", " ") else "")
    options = [name for param in command.params if isinstance(param, click.Option) for name in param.opts]
    assert [name for name in options if f"`{name}`" not in known] == []


def test_every_choice_of_an_option_is_documented() -> None:
    missing = []
    for words, command in commands():
        if isinstance(command, click.Group) and words != "workers":
            continue
        chosen = [param for param in command.params if isinstance(param.type, click.Choice)]
        for param in chosen:
            [row] = [row for row in section_of(words).splitlines() if f"`{param.opts[0]}`" in row and row[0] == "|"]
            missing += [f"{words} {param.opts[0]} {one}" for one in param.type.choices if f"`{one}`" not in row]
    assert missing == []


def test_no_section_is_about_a_command_that_is_gone() -> None:
    typed = {f"holdfast {words}" for words, _ in commands()}
    assert {title for title in SECTIONS if title.startswith("holdfast ")} == typed


def test_no_option_is_documented_that_is_gone() -> None:
    for words, command in commands():
        if isinstance(command, click.Group) and words != "workers":
            continue
        taken = {name for param in command.params for name in param.opts} | {"--version", "--help", "--url", "--app"}
        table = re.findall(r"^\| (`-.*?) \|", section_of(words), re.MULTILINE)
        told = {name for row in table for name in re.findall(r"`(-[-a-z]+)`", row)}
        assert told <= taken, words


def test_every_exit_code_is_documented() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", SECTIONS["Exit codes"], re.MULTILINE)}
    assert told == {code.value for code in Exit}


def test_every_check_of_doctor_is_explained() -> None:
    operations = (DOCS / "operations.md").read_text(encoding="utf-8")
    for check in CHECKS:
        assert f"\n### {check}\n" in operations
        assert f"`{check}`" in SECTIONS["holdfast doctor"]
