"""Results as an application waits for them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from holdfast import Holdfast, JobCancelled, JobDead, JobView

hf = Holdfast("sqlite:///shop.db")


@dataclass
class Sent:
    to: str


@hf.job
def send(order_id: int) -> Sent:
    return Sent(str(order_id))


async def main() -> None:
    job = send.enqueue(1)
    assert_type(hf.get(job), JobView)
    assert_type(await hf.aget(job.id, tx=None), JobView)
    assert_type(hf.get(job).state == "done", bool)
    assert_type(hf.result(job), Any)
    assert_type(hf.result(job, 5), Any)
    assert_type(hf.result(send.enqueue(1), timeout=timedelta(seconds=5), type=Sent), Sent)
    assert_type(await hf.aresult(job.id, 0.5, type=list[Sent]), list[Sent])
    try:
        await hf.aresult(job)
    except JobDead as error:
        assert_type(error.error_type, str)
        assert_type(error.job, JobView)
    except JobCancelled as error:
        assert_type(error.reason, str)
    hf.result(5)  # error: call-overload, reportArgumentType
    hf.result(job, "5s")  # error: call-overload, reportArgumentType
    hf.get(send)  # error: arg-type, reportArgumentType
    hf.get(job, 5)  # error: call-arg, reportCallIssue
    number: int = hf.result(job, type=str)  # error: assignment, reportAssignmentType
    print(number)
