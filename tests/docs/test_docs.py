"""The docs do what they say: their Python runs, their commands exist, their links lead somewhere.

A page's ```python blocks run in order in one process, in an empty folder. A comment on the line before a block changes
that: `<!-- needs: postgres -->` gives it `DATABASE_URL`, `<!-- needs: nats -->` and the other names of `BROKERS` give
it the address of a broker, `<!-- file: shop.py -->` writes it to a file, `<!-- append: shop.py -->` adds it to one,
`<!-- run -->` runs the `holdfast`, `python` and `django-admin` lines of a ```console block, and
`<!-- not run: reason -->` leaves a block out.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import pytest

from holdfast.cli import main
from tests import brokers
from tests.servers import Postgres, Server

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^(?P<pad> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^(?P=pad)```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (needs|file|append|run|not run)(?:: (.+?))? -->")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# What a page may need beside a database: the broker, the name that its examples have for its address, and the address.
BROKERS: dict[str, tuple[type[Server], str, Callable[[Any], str]]] = {
    "kafka": (brokers.Kafka, "KAFKA_SERVERS", lambda server: server.address),
    "moto": (brokers.Moto, "AWS_URL", lambda server: server.url),
    "mosquitto": (brokers.Mosquitto, "MQTT_URL", lambda server: server.url),
    "nats": (brokers.NatsServer, "NATS_URL", lambda server: server.url),
    "rabbitmq": (brokers.RabbitMQ, "AMQP_URL", lambda server: server.url),
    "redis": (brokers.RedisServer, "REDIS_URL", lambda server: server.url),
}
# What is run of a console block that says so.
RUN = ("holdfast ", "python ", "django-admin ")
NAMES = ["DATABASE_URL", *(name for _, name, _ in BROKERS.values())]
PRELUDE = "import os, shlex, subprocess; " + "; ".join(f"{name} = os.environ.get({name!r})" for name in NAMES) + "; "

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    marks: dict[str, str]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = []
    for match in BLOCK.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        marks = {name: value or "" for name, value in MARK.findall(before)}
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(line, match["language"], dedent(match["text"]), marks))
    return found


def script_of(blocks: list[Block]) -> str:
    """Write one script of all blocks, each on the line it has in the page, so that a traceback points there."""
    lines = [PRELUDE]
    for block in blocks:
        if "not run" in block.marks:
            continue
        lines += [""] * (block.line - 1 - len(lines))
        if "file" in block.marks:
            lines.append(f"open({block.marks['file']!r}, 'w').write({block.text!r})")
        elif "append" in block.marks:
            lines.append(f"open({block.marks['append']!r}, 'a').write({block.text!r})")
        elif block.language == "python":
            lines += block.text.splitlines()
        elif block.language == "console" and "run" in block.marks:
            lines += [f"subprocess.run(shlex.split({command!r}), check=True)" for command in commands_of(block, RUN)]
    return "\n".join(lines) + "\n"


def commands_of(block: Block, programs: tuple[str, ...] = ("holdfast ",)) -> list[str]:
    """List the `holdfast` commands of a console block, without the prompt and the remark behind them."""
    prompts = (
        line.removeprefix("$ ") for line in block.text.replace("\\\n", " ").splitlines() if line.startswith("$ ")
    )
    parts = (part.strip() for line in prompts for part in re.split(r" && | \| | +# ", line))
    return [part for part in parts if part.startswith(programs)]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | {
        "HOLDFAST_URL": f"sqlite:///{folder}/holdfast.db",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
    }


@each_page
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    blocks = blocks_of(page)
    names = environment(tmp_path)
    if any(block.marks.get("needs") == "postgres" for block in blocks):
        server: Postgres = request.getfixturevalue("postgres")
        names["DATABASE_URL"] = server.start().fresh_database()
    script = tmp_path / f"{page.stem}_md.py"
    script.write_text(script_of(blocks), "utf-8")
    with contextlib.ExitStack() as running:
        for needed in {block.marks["needs"] for block in blocks if block.marks.get("needs") in BROKERS}:
            kind, name, address = BROKERS[needed]
            names[name] = address(running.enter_context(kind()))
        done = subprocess.run(
            [sys.executable, "-W", "error", script],
            cwd=tmp_path,
            env=names,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, f"{page.relative_to(ROOT)} (the line numbers are the page's):\n{done.stderr[-4000:]}"


@each_page
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for block in blocks_of(page):
        for command in commands_of(block) if block.language == "console" else []:
            try:
                understand(shlex.split(command)[1:])
            except click.ClickException as error:
                pytest.fail(f"{page.relative_to(ROOT)}:{block.line}: `{command}`: {error.format_message()}")


def understand(arguments: list[str]) -> None:
    """Parse a command line as click would before it runs the command; raise what click finds wrong with it."""
    command: click.Command = main
    context: click.Context | None = None
    while True:
        known = isinstance(command, click.Group) and arguments and not arguments[0].startswith("-")
        if not known:
            command.make_context(command.name, arguments, parent=context)
            return
        assert isinstance(command, click.Group)
        context = click.Context(command, parent=context, info_name=command.name)
        _, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command = found


@each_page
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    for link in LINK.findall(text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)}: {link}: there is no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{page.relative_to(ROOT)}: {link}: there is no such heading"


def anchors_of(page: Path) -> set[str]:
    """Name a page's headings as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
