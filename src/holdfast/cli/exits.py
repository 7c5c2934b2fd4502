"""Exit codes, and which error ends a command with which."""

from __future__ import annotations

from enum import IntEnum

from holdfast import errors


class Exit(IntEnum):
    """What a command's exit code says; the table is in docs/reference/cli.md."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    SCHEMA = 3
    UNAVAILABLE = 4
    NOT_FOUND = 5
    CONFLICT = 6
    PROBLEMS = 7
    DEAD = 8
    CANCELLED = 9
    TIMEOUT = 10


# The first class that fits decides, so the narrower ones stand first.
EXITS: tuple[tuple[type[Exception], Exit], ...] = (
    (errors.SchemaMissing, Exit.SCHEMA),
    (errors.SchemaMismatch, Exit.SCHEMA),
    (errors.DatabaseUnavailable, Exit.UNAVAILABLE),
    (errors.DatabaseBusy, Exit.UNAVAILABLE),
    (errors.JobNotFound, Exit.NOT_FOUND),
    (errors.JobDead, Exit.DEAD),
    (errors.JobCancelled, Exit.CANCELLED),
    (errors.ScheduleNotFound, Exit.NOT_FOUND),
    (errors.RunNotFound, Exit.NOT_FOUND),
    (errors.RunFinished, Exit.CONFLICT),
    (errors.Conflict, Exit.CONFLICT),
    (errors.LeaseLost, Exit.CONFLICT),
    (errors.UniqueViolation, Exit.CONFLICT),
    (errors.ConfigError, Exit.USAGE),
    (errors.DriverMissing, Exit.USAGE),
    (errors.UnknownKind, Exit.USAGE),
    (errors.PayloadError, Exit.USAGE),
)
