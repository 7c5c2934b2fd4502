"""An application on SQLite whose tasks are shared ones: what the shim says is the same on every database."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.celery import Celery
from holdfast.celery import app as shim


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("celery") / "empty.db"
    with Holdfast(f"sqlite:///{path}") as hf:
        hf.migrate()
    return path


@pytest.fixture
def hf(migrated_file: Path, tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'test.db')}") as hf:
        yield hf


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have shared and installed."""
    monkeypatch.setattr(shim.shared, "_tasks", {})
    monkeypatch.setattr(shim.shared, "_app", None)


@pytest.fixture
def app(hf: Holdfast) -> Celery:
    return Celery("shop", holdfast=hf)


@pytest.fixture
def eager() -> Celery:
    """An application without a database, whose calls run at once."""
    return Celery("shop", task_always_eager=True)
