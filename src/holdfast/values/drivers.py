"""Drivers and clients are imported at first use: an application pays for what it uses, and installs no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from holdfast.errors import DriverMissing


@contextmanager
def importing(driver: str, extra: str) -> Iterator[None]:
    """Say which extra of ours to install where a driver cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise DriverMissing(driver, extra, str(error).partition("\n")[0]) from error


def require(driver: str, extra: str) -> None:
    """Refuse to go on without a driver, but leave the import of it, which takes time, to its first use.

    Raises: DriverMissing.
    """
    if find_spec(driver) is None:
        raise DriverMissing(driver, extra, "it is not installed")
