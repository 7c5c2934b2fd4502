"""What an application may name is read by pyright in strict mode, so that editors know its types."""

import importlib
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PROJECT = Path(__file__).parents[2]
# The modules that applications import names from; what they give is defined elsewhere.
FACES = ("holdfast", "holdfast.jobs", "holdfast.inbox", "holdfast.sinks", "holdfast.errors", "holdfast.events")
# What stays out, and why.
UNTYPED = {
    "sinks/aws.py": "aiobotocore has no types",
    "sinks/kafka.py": "aiokafka has no types",
    "sinks/mqtt.py": "paho's types are not whole",
    "sinks/nats.py": "nats-py's types are not whole",
    "sinks/redis.py": "redis-py's types are not whole",
    "life/source.py": "a protocol, whose methods have a docstring instead of a body",
}


def strict() -> list[str]:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["pyright"]
    assert settings["typeCheckingMode"] == "strict"
    return [one.removeprefix("src/holdfast/") for one in settings["include"]]


def homes() -> Iterator[str]:
    """List the files that define public names."""
    for face in FACES:
        for name, value in vars(importlib.import_module(face)).items():
            home = inspect.getmodule(value) if callable(value) else None
            if not name.startswith("_") and home is not None and home.__name__.startswith("holdfast"):
                yield str(Path(home.__file__ or "").relative_to(ROOT))


def is_in(file: str, places: list[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


def test_modules_of_public_names_are_checked_strictly() -> None:
    found = set(homes())
    assert len(found) > 40
    assert {file for file in found if not is_in(file, strict())} == UNTYPED.keys()


@pytest.mark.parametrize("place", strict())
def test_what_is_checked_strictly_is_there(place: str) -> None:
    assert (ROOT / place).exists()
