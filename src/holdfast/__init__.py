"""Holdfast: durable work in the database you already run."""

from holdfast.app import Holdfast
from holdfast.bound import Bound, Enqueueing
from holdfast.bulk import Bulk, BulkHandler
from holdfast.errors import (
    ConfigError,
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    DriverMissing,
    Fatal,
    HoldfastError,
    InvalidPayload,
    JobNotFound,
    LeaseLost,
    LeasesLost,
    PayloadTooLarge,
    SchemaMismatch,
    SchemaMissing,
    UnknownKind,
)
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.store import migrate as migrate
from holdfast.values.retry import Cancel, Retry, Snooze
from holdfast.values.rows import Enqueued

__all__ = [
    "Bound",
    "Bulk",
    "BulkHandler",
    "Cancel",
    "ConfigError",
    "Conflict",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "DriverMissing",
    "Enqueued",
    "Enqueueing",
    "Fatal",
    "Handler",
    "Holdfast",
    "HoldfastError",
    "InvalidPayload",
    "Job",
    "JobNotFound",
    "LeaseLost",
    "LeasesLost",
    "PayloadTooLarge",
    "Retry",
    "SchemaMismatch",
    "SchemaMissing",
    "Snooze",
    "UnknownKind",
]

__version__ = "0.1.0"
