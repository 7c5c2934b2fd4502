"""Foreign tables, which programs in other languages share: `hf.foreign.pdo(…)`, `durable(…)` and `airlock(…)`.

Each kind is a folder with its flows, its worker's half (a `Source`) and its people's half (a `Desk`). Foreign words
(urn, reserve, ack, grp, step) stay inside this package. Tables of ours do not belong here, nor what runs handlers: a
worker serves these rows as it serves our jobs.
"""

from holdfast.foreign.airlock.outbox import AirlockOutbox as AirlockOutbox
from holdfast.foreign.durable.engine import RemoteEngine as RemoteEngine
from holdfast.foreign.durable.sqs import SqsTransport as SqsTransport
from holdfast.foreign.durable.steps import DurableSteps as DurableSteps
from holdfast.foreign.pdo.queue import PdoQueue as PdoQueue
from holdfast.foreign.registry import Foreign as Foreign
from holdfast.foreign.source import ForeignSource as ForeignSource
