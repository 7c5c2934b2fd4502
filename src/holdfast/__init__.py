"""Holdfast: durable work in the database you already run."""

from holdfast.app import Holdfast
from holdfast.errors import (
    ConfigError,
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    Fatal,
    HoldfastError,
    InvalidPayload,
    JobNotFound,
    LeaseLost,
    PayloadTooLarge,
    SchemaMismatch,
    SchemaMissing,
    UnknownKind,
)
from holdfast.handlers import Bound, Handler
from holdfast.job import Job
from holdfast.model import Enqueued
from holdfast.retry import Cancel, Retry, Snooze

__all__ = [
    "Bound",
    "Cancel",
    "ConfigError",
    "Conflict",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "Enqueued",
    "Fatal",
    "Handler",
    "Holdfast",
    "HoldfastError",
    "InvalidPayload",
    "Job",
    "JobNotFound",
    "LeaseLost",
    "PayloadTooLarge",
    "Retry",
    "SchemaMismatch",
    "SchemaMissing",
    "Snooze",
    "UnknownKind",
]

__version__ = "0.1.0"
