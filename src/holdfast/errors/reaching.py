"""Errors of databases that are there and cannot be used as they are."""

from __future__ import annotations

from holdfast.errors.general import AccessRefused, DatabaseUnavailable, HoldfastError


class FileRefused(AccessRefused):
    """The file of a SQLite database cannot be opened, mostly because its folder is not there."""

    def __init__(self, file: str, why: str) -> None:
        self.file = file
        self.detail = why
        HoldfastError.__init__(self, f"The database file {file} cannot be opened: {why}")


class ReadOnlyDatabase(DatabaseUnavailable):
    """The server runs and takes no writes, or none of those that the URL names does: a failover may be under way."""

    summary = (
        "The database takes no writes: the server is a standby or set to be read-only, or the transaction is. Name the "
        "primary in the URL, or all hosts (postgresql://user@a,b/shop); during a failover, wait for its end."
    )
