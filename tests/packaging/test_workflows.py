"""The workflow files of GitHub: they run our own commands, take fixed actions, and may do no more than they need."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release import complaints

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXTS = {file.stem: file.read_text("utf-8") for file in FILES}
WORKFLOWS: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
RELEASE = WORKFLOWS["release"]["jobs"]
# Who may do more than read the source, and what it is for.
MORE = {
    ("release", "attest"): {"id-token": "write", "attestations": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("release", "page"): {"contents": "write"},
}

each_job = pytest.mark.parametrize(
    "workflow, job", [(name, job) for name in WORKFLOWS for job in WORKFLOWS[name]["jobs"]]
)


def steps() -> Iterator[dict[str, Any]]:
    for workflow in WORKFLOWS.values():
        for job in workflow["jobs"].values():
            yield from job.get("steps", [])


def test_ci_runs_what_every_other_place_runs() -> None:
    assert [step["run"] for step in WORKFLOWS["ci"]["jobs"]["test"]["steps"] if "run" in step][-1] == ".ci/run"
    assert RELEASE["test"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in WORKFLOWS["ci"][True]  # YAML reads `on` as true


@pytest.mark.parametrize("workflow", TEXTS)
def test_every_action_is_one_commit_and_says_which_version_that_is(workflow: str) -> None:
    used = re.findall(r"uses: (.+)", TEXTS[workflow])
    ours = [action for action in used if action.startswith("./")]
    fixed = [action for action in used if re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(?:\.\d+)+", action)]
    assert used
    assert sorted(used) == sorted(ours + fixed)


@each_job
def test_a_job_may_do_no_more_than_it_needs(workflow: str, job: str) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {}, "what a job does not name, it must not have"
    assert WORKFLOWS[workflow]["jobs"][job]["permissions"] == MORE.get((workflow, job), {"contents": "read"})


@pytest.mark.parametrize("workflow", TEXTS)
def test_no_password_is_kept_and_no_stranger_runs_with_our_rights(workflow: str) -> None:
    assert "secrets." not in TEXTS[workflow]
    assert "pull_request_target" not in TEXTS[workflow]


def test_a_checkout_leaves_no_token_behind() -> None:
    taken = [step for step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert taken
    assert all(step["with"]["persist-credentials"] is False for step in taken)


def test_no_command_has_words_of_others_in_it() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []


def test_every_target_of_make_that_they_run_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    run = [shlex.split(step["run"]) for step in steps() if step.get("run", "").startswith("make ")]
    assert run
    assert {target for words in run for target in words[1:]} <= targets


def test_a_release_is_tested_then_built_once_then_attested_and_published_from_that_build() -> None:
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}
    assert RELEASE["build"]["needs"] == "test"
    assert RELEASE["attest"]["needs"] == "build"
    assert RELEASE["publish"]["needs"] == ["build", "attest"]
    assert RELEASE["publish"]["environment"]["name"] == "pypi"
    built = [step["run"] for job in RELEASE.values() for step in job.get("steps", []) if "make" in step.get("run", "")]
    assert built == ["make dist"]


def test_what_publishes_runs_nothing_of_the_repository() -> None:
    actions = [step["uses"].partition("@")[0] for step in RELEASE["publish"]["steps"]]
    assert actions == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert RELEASE["publish"]["steps"][1]["with"]["attestations"] is True


def test_a_tag_that_names_another_version_stops_the_release(tmp_path: Path) -> None:
    (tmp_path / "src/holdfast").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "src/holdfast/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2030-01-01\n")
    assert complaints("v1.2.3", tmp_path) == []
    assert len(complaints("v1.2.4", tmp_path)) == 3
    assert complaints("1.2.3", tmp_path) == ["the tag 1.2.3 does not begin with v"]
