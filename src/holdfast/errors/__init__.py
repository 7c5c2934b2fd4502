"""Every error that Holdfast raises.

HoldfastError
├── ConfigError                (also a ValueError) an option, URL, identifier or handler signature
├── DriverMissing              (also an ImportError) the database's driver is not installed
├── UnknownKind                no handler of that name
├── PayloadError
│   ├── InvalidPayload         an argument that is missing, unexpected, wrongly typed or not JSON
│   └── PayloadTooLarge
├── TransactionError           misuse of ``tx=``
│   ├── UnsupportedConnection
│   ├── WrongDatabase
│   ├── WrongColour            a sync connection in an async call, or the reverse
│   ├── ConnectionClosed
│   ├── ConnectionInUse
│   ├── NoTransaction
│   ├── TransactionAborted
│   ├── TransactionEnded       the one that ``job.transaction()`` opened
│   └── SharedTransactionUndone
├── StoreError                 the database; the driver's error is the ``__cause__``
│   ├── DatabaseUnavailable
│   │   ├── AccessRefused      wrong user, password or database
│   │   │   └── FileRefused    the folder of a SQLite file is not there
│   │   └── ReadOnlyDatabase   a standby, or no host that takes writes
│   ├── DatabaseBusy
│   ├── UniqueViolation
│   ├── SchemaMissing
│   │   └── ForeignTablesMissing
│   ├── SchemaMismatch
│   ├── UnknownFollowers       what follows a job's end is not known to this process
│   └── QueryFailed
├── LeaseLost
├── LeasesLost
├── JobNotFound
│   └── BatchNotFound          no batch of that id can be extended or sealed
├── JobDead                    raised to those who wait for a result: the job is a dead letter
├── JobCancelled               raised to those who wait for a result: the job was cancelled
├── WouldBlock                 a sync call that waits, on the thread of an event loop
├── ScheduleNotFound
├── RunNotFound
├── RunFinished                the run is over and takes no signals any more
├── StepFailed                 raised in a workflow: a step failed for good
├── ChildFailed                raised in a workflow: a child run is dead or cancelled
├── NonDeterminism             a workflow's body does something else than its journal says
│   └── NoIO                   real I/O in a workflow's body
├── Conflict
│   └── NotSupported           the tables do not do this at all; the message says what to do instead
├── TimedOut                   recorded, not raised: the attempt took longer than the handler's time-out
├── Unusable                   recorded, not raised: what the handler gave cannot be read
├── WorkerFailed               a part of an embedded worker broke; the ``__cause__`` is what it raised
└── HookFailed                 a hook of the worker's start raised, so it does not start

Fatal                          raised by handlers, not by Holdfast: the job is not retried

Classes with their fields and their words belong here: what went wrong, and what to do. What decides that something is
wrong belongs to the rooms that raise them, and what an error means to a shell, its exit code, to `cli`.
"""

from holdfast.errors.general import OVER as OVER
from holdfast.errors.general import UNREAD as UNREAD
from holdfast.errors.general import AccessRefused as AccessRefused
from holdfast.errors.general import BatchNotFound as BatchNotFound
from holdfast.errors.general import BusyReason as BusyReason
from holdfast.errors.general import ConfigError as ConfigError
from holdfast.errors.general import Conflict as Conflict
from holdfast.errors.general import ConnectionClosed as ConnectionClosed
from holdfast.errors.general import ConnectionInUse as ConnectionInUse
from holdfast.errors.general import DatabaseBusy as DatabaseBusy
from holdfast.errors.general import DatabaseUnavailable as DatabaseUnavailable
from holdfast.errors.general import DriverMissing as DriverMissing
from holdfast.errors.general import Fatal as Fatal
from holdfast.errors.general import ForeignTablesMissing as ForeignTablesMissing
from holdfast.errors.general import HoldfastError as HoldfastError
from holdfast.errors.general import InvalidPayload as InvalidPayload
from holdfast.errors.general import JobCancelled as JobCancelled
from holdfast.errors.general import JobDead as JobDead
from holdfast.errors.general import JobNotFound as JobNotFound
from holdfast.errors.general import LeaseLost as LeaseLost
from holdfast.errors.general import LeasesLost as LeasesLost
from holdfast.errors.general import NoTransaction as NoTransaction
from holdfast.errors.general import NotSupported as NotSupported
from holdfast.errors.general import PayloadError as PayloadError
from holdfast.errors.general import PayloadTooLarge as PayloadTooLarge
from holdfast.errors.general import QueryFailed as QueryFailed
from holdfast.errors.general import ScheduleNotFound as ScheduleNotFound
from holdfast.errors.general import SchemaMismatch as SchemaMismatch
from holdfast.errors.general import SchemaMissing as SchemaMissing
from holdfast.errors.general import SharedTransactionUndone as SharedTransactionUndone
from holdfast.errors.general import StoreError as StoreError
from holdfast.errors.general import TimedOut as TimedOut
from holdfast.errors.general import TransactionAborted as TransactionAborted
from holdfast.errors.general import TransactionEnded as TransactionEnded
from holdfast.errors.general import TransactionError as TransactionError
from holdfast.errors.general import UniqueViolation as UniqueViolation
from holdfast.errors.general import UnknownFollowers as UnknownFollowers
from holdfast.errors.general import UnknownKind as UnknownKind
from holdfast.errors.general import UnsupportedConnection as UnsupportedConnection
from holdfast.errors.general import Unusable as Unusable
from holdfast.errors.general import WorkerFailed as WorkerFailed
from holdfast.errors.general import WouldBlock as WouldBlock
from holdfast.errors.general import WrongColour as WrongColour
from holdfast.errors.general import WrongDatabase as WrongDatabase
from holdfast.errors.general import redact as redact
from holdfast.errors.hooks import HookFailed as HookFailed
from holdfast.errors.reaching import FileRefused as FileRefused
from holdfast.errors.reaching import ReadOnlyDatabase as ReadOnlyDatabase
from holdfast.errors.runs import ChildFailed as ChildFailed
from holdfast.errors.runs import NoIO as NoIO
from holdfast.errors.runs import NonDeterminism as NonDeterminism
from holdfast.errors.runs import RunFinished as RunFinished
from holdfast.errors.runs import RunNotFound as RunNotFound
from holdfast.errors.runs import StepFailed as StepFailed

# Where users import them from, and what records of failures, and so groups of dead letters, call them by.
for _each in list(globals().values()):
    if isinstance(_each, type) and issubclass(_each, Exception):
        _each.__module__ = __name__
