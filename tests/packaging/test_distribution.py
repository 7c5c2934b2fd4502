"""What is built can be installed: the wheel holds what it needs and nothing else, and runs in an empty environment."""

import email
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import holdfast
from tests.servers import run

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
UV = str(Path(sys.executable).with_name("uv"))
SHOP = """
import asyncio, sys
from holdfast import Holdfast

hf = Holdfast("sqlite:///shop.db")

@hf.job
def greet(name: str) -> str:
    return f"hello, {name}"

async def work(id: str) -> None:
    async with hf.worker():
        print(await hf.aresult(id, timeout=60))

if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
"""


def build(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """Build a wheel or an sdist of a source tree; hatchling is here, so nothing is downloaded."""
    run([sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)], cwd=source)
    [built] = folder.iterdir()
    return built


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build("wheel", tmp_path / "dist")


def names_in(wheel: Path) -> set[str]:
    return set(contents_of(wheel))


def contents_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_with_all_its_files_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    files = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*") if file.is_file()}
    written = {name for name in files if "__pycache__" not in name}
    assert {name for name in names if ".dist-info/" not in name} == written
    assert {"holdfast/py.typed", "holdfast/jobs/sql/postgres.sql", "holdfast/dashboard/templates/base.html"} <= names
    assert any(re.fullmatch(r"holdfast/store/dialects/migrations/sqlite/\d{4}_\w+\.sql", name) for name in names)
    assert {name.split("/")[0] for name in names} == {
        "holdfast",
        "holdfast_probe.py",  # the command's first look: see the module
        f"holdfast_db-{holdfast.__version__}.dist-info",
    }


def test_the_metadata_is_valid_and_says_what_the_project_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = Metadata.from_email(archive.read(name), validate=True)
    assert (told.name, str(told.version)) == ("holdfast-db", holdfast.__version__)
    assert (
        told.version
        == Metadata.from_raw({"metadata_version": "2.4", "name": "x", "version": PROJECT["version"]}).version
    )
    assert told.description_content_type == "text/markdown"
    assert (told.description or "").startswith("# Holdfast")
    assert set(told.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert told.license_expression == "MIT"
    assert str(told.requires_python) == ">=3.11"


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_what_an_extra_asks_for_can_be_had_and_is_what_the_tests_run_with(extra: str) -> None:
    for line in PROJECT["optional-dependencies"][extra]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(importlib.metadata.version(wanted.name)), line


def test_the_wheel_runs_in_a_new_environment_without_extras(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    names = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    # The versions of the lock, so that a release elsewhere does not decide; `check` holds them against the metadata.
    sync = [UV, "sync", "--quiet", "--frozen", "--no-dev", "--no-install-project", "--python", sys.executable]
    run(sync, cwd=ROOT, env=names | {"UV_PROJECT_ENVIRONMENT": str(environment)})
    python = str(environment / "bin" / "python")
    run([UV, "pip", "install", "--quiet", "--no-deps", "--python", python, str(wheel)])
    run([UV, "pip", "check", "--quiet", "--python", python])

    def do(*words: str) -> str:
        return run([str(environment / "bin" / words[0]), *words[1:]], cwd=tmp_path, env=names)

    (tmp_path / "shop.py").write_text(SHOP)
    assert do("holdfast", "--version") == f"holdfast {holdfast.__version__}\n"
    do("holdfast", "migrate", "apply", "--app", "shop:hf")
    job = do("holdfast", "enqueue", "shop:hf", "greet", "name=Ada").split()[-1]
    assert do("python", "shop.py", job) == "hello, Ada\n"
    missing = subprocess.run(
        [str(environment / "bin" / "holdfast"), "workers", "--url", "postgresql://localhost/shop"],
        env=names, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 'pip install "holdfast-db[postgres]"' in missing.stderr


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build("sdist", tmp_path / "source")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / source.name.removesuffix(".tar.gz")
    assert contents_of(build("wheel", tmp_path / "again", folder)) == contents_of(wheel)
    for name in (
        "tests/conftest.py",
        "docs/README.md",
        "tools/site.py",
        "Makefile",
        "CHANGELOG.md",
        "LICENSE",
        "uv.lock",
    ):
        assert (folder / name).is_file(), name
    assert not list(folder.glob(".run")) + list(folder.glob(".venv*"))


def test_a_build_does_not_look_into_folders_that_change_while_it_runs(tmp_path: Path) -> None:
    """Servers of other tests make and delete folders in .run: a build that walks there may find one gone."""
    looked = tmp_path / "looked"
    build_and_note = f"""
import os, sys
from hatchling.cli import hatchling
out = open({str(looked)!r}, "w")
sys.addaudithook(lambda event, args: event == "os.scandir" and print(os.path.abspath(args[0]), file=out))
sys.argv = ["hatchling", "build", "--target", "sdist", "--directory", {str(tmp_path / "dist")!r}]
hatchling()
out.close()
"""
    (ROOT / ".run" / "seen-by-a-build").mkdir(parents=True, exist_ok=True)
    run([sys.executable, "-c", build_and_note], cwd=ROOT)
    folders = looked.read_text().splitlines()
    assert str(ROOT / "src" / "holdfast") in folders
    assert not [folder for folder in folders if folder.startswith((str(ROOT / ".run"), str(ROOT / ".venv")))]


def test_what_is_installed_for_these_tests_is_this_version() -> None:
    assert importlib.metadata.version("holdfast-db") == holdfast.__version__ == PROJECT["version"]
    told = email.message_from_string(importlib.metadata.distribution("holdfast-db").read_text("METADATA") or "")
    assert told["Name"] == "holdfast-db"
