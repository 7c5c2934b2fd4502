"""Jobs that a transaction of the handler's own may have completed before the handler failed.

Nobody has told the worker whether that was committed. Written as it is, the end of such an attempt would be told of a
job that is done, or as a lost lease; so what is there is looked at first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast import jobs
from holdfast.flow import Flow
from holdfast.values.rows import Finish
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.work import Ended


def may_be_complete(ended: Ended) -> bool:
    """Tell whether an attempt has sent a completion of its own, and ended otherwise."""
    job, write = ended.work.job, ended.write
    if job is None or not job.completing or job.settled or write is None or not ended.work.source.ours:
        return False
    return not (isinstance(write, Finish) and write.outcome == "done")


async def set_right(
    run: Callable[[Flow[Any]], Awaitable[Any]], outcomes: Outcomes, batch: Sequence[Ended]
) -> list[Ended]:
    """Return the ends of a batch as they are in truth: a job whose completion was committed is done."""
    sent = [ended.work for ended in batch if may_be_complete(ended)]
    if not sent:
        return list(batch)
    ends = [Finish(work.lease.id, work.lease.fence, "done", keep=work.keep) for work in sent]
    done: set[str] = await run(jobs.completed(ends))
    return [
        outcomes.after_completion(ended) if may_be_complete(ended) and ended.work.lease.job_id in done else ended
        for ended in batch
    ]
