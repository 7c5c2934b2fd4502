"""`holdfast completion`: the tab key works in a real shell."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.completion import SHELLS
from tests.cli.conftest import Run

PROMPT = "ready>"


class Terminal:
    """An interactive bash on a terminal of its own."""

    def __init__(self, home: Path) -> None:
        ours, theirs = pty.openpty()
        names = {**os.environ, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        names |= {"PS1": PROMPT, "TERM": "dumb", "INPUTRC": "/dev/null"}
        self.screen, self.seen = ours, ""
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=names, cwd=home,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def until(self, text: str) -> str:
        """Read the screen until it shows a text; return what came since the last call."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"the terminal never showed {text!r}, but: {self.seen!r}"
            if select.select([self.screen], [], [], left)[0]:
                self.seen += os.read(self.screen, 4096).decode(errors="replace")
        shown, _, self.seen = self.seen.partition(text)
        return shown

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self.screen)


def test_the_tab_key_completes_commands_and_options_in_bash(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        terminal.until(PROMPT)
        terminal.type('eval "$(holdfast completion bash)"\n')
        terminal.until(PROMPT)
        terminal.type("holdfast worker-al\t")
        terminal.until("worker-alive ")
        terminal.type("--wit\t")
        terminal.until("--within ")
    finally:
        terminal.close()


def test_states_are_completed() -> None:
    command = [sys.executable, "-c", "from holdfast.cli import main; main(prog_name='holdfast')"]
    asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast jobs list --state d", "COMP_CWORD": "4"}
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,done", "plain,dead"]


def test_fish_gets_whole_sentences(run: Run) -> None:
    # As fish itself would, of which not every machine has one: the sentence of `workers` has a comma.
    assert 'set -l metadata (string split --max 1 "," $completion)' in run("completion", "fish").stdout


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_shows_whole_sentences(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "holdfast.fish").write_text(run("completion", "fish").stdout)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        ["fish", "-c", 'complete -C"holdfast worker"'],
        env=os.environ | {"HOME": str(tmp_path), "PATH": path},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "workers\tList the workers, or drain some." in shown


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_one_that_it_can_read(run: Run, shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    assert "_HOLDFAST_COMPLETE" in script
    if program := shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([program, "-n", file], check=True)


def test_another_shell_is_wrong_usage_and_names_those_that_can_be_had(run: Run) -> None:
    assert "bash" in run("completion", "csh", code=2).stderr
