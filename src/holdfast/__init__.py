"""Holdfast: durable work in the database you already run."""

from holdfast.app import Holdfast, Registry
from holdfast.app.batching import Batch
from holdfast.bound import Bound, Continue, Enqueueing
from holdfast.bulk import Bulk, BulkHandler
from holdfast.chains import Parent, Parents
from holdfast.errors import (
    ChildFailed,
    ConfigError,
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    DriverMissing,
    Fatal,
    HoldfastError,
    HookFailed,
    InvalidPayload,
    JobCancelled,
    JobDead,
    JobNotFound,
    LeaseLost,
    LeasesLost,
    NoIO,
    NonDeterminism,
    PayloadTooLarge,
    RunFinished,
    RunNotFound,
    ScheduleNotFound,
    SchemaMismatch,
    SchemaMissing,
    StepFailed,
    UnknownKind,
    WouldBlock,
)
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.outbox import Draft, Published, Route
from holdfast.runs import RunView
from holdfast.schedules import Schedule
from holdfast.store import migrate as migrate
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.debounce import Debounce, Throttle
from holdfast.values.given import GIVEN
from holdfast.values.queues import Rate
from holdfast.values.retry import Cancel, Retry, Snooze
from holdfast.values.rows import Enqueued
from holdfast.values.views import JobView
from holdfast.workflows import Run, RunHandle, Workflow

__all__ = [
    "GIVEN",
    "Batch",
    "Bound",
    "Bulk",
    "BulkHandler",
    "Cancel",
    "ChildFailed",
    "CloudEvent",
    "ConfigError",
    "Conflict",
    "Continue",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "Debounce",
    "Draft",
    "DriverMissing",
    "Enqueued",
    "Enqueueing",
    "Fatal",
    "Handler",
    "Holdfast",
    "HoldfastError",
    "HookFailed",
    "InvalidPayload",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobNotFound",
    "JobView",
    "LeaseLost",
    "LeasesLost",
    "NoIO",
    "NonDeterminism",
    "Parent",
    "Parents",
    "PayloadTooLarge",
    "Published",
    "Rate",
    "Registry",
    "Retry",
    "Route",
    "Run",
    "RunFinished",
    "RunHandle",
    "RunNotFound",
    "RunView",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SchemaMissing",
    "Snooze",
    "StepFailed",
    "Throttle",
    "UnknownKind",
    "Workflow",
    "WouldBlock",
]

__version__ = "0.1.0"
