"""The executors that a source may name: what runs its jobs in the slots.

To add one, write a `BaseExecutor` in a file of its own and name it here.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.context import Context
from holdfast.store import Store
from holdfast.worker.begins import Begins
from holdfast.worker.bulk_executor import BulkExecutor
from holdfast.worker.handler_executor import Executor
from holdfast.worker.handler_threads import Threads
from holdfast.worker.relay_executor import RelayExecutor
from holdfast.worker.run_executor import RunExecutor
from holdfast.worker.work import BaseExecutor

# Made once for each worker and store: from the context, the worker's id, its threads, the store's begins and the store.
MakeExecutor = Callable[[Context, str, Threads, Begins, Store], BaseExecutor]

EXECUTORS: dict[str, MakeExecutor] = {
    "handler": Executor,
    "bulk": BulkExecutor,
    "relay": RelayExecutor,
    "run": RunExecutor,
}
