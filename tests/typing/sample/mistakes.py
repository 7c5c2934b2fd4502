"""What type checkers must refuse, on exactly these lines; the comment names mypy's code and pyright's rule."""

from holdfast import Enqueueing, Holdfast, Job

hf = Holdfast("sqlite:///shop.db")


@hf.job
def send(order_id: int, note: str = "") -> None: ...


@hf.job(queue="mail")
async def receipt(job: Job, order_id: int) -> None: ...


async def enqueue() -> None:
    send.enqueue("9182")  # error: arg-type, reportArgumentType
    send.enqueue(order_id="9182")  # error: arg-type, reportArgumentType
    send.enqueue()  # error: call-arg, reportCallIssue
    send.enqueue(1, "x", 2)  # error: call-arg, reportCallIssue
    send.enqueue(order_id=1, colour="red")  # error: call-arg, reportCallIssue
    send.enqueue(order_id=1, tx=None)  # error: call-arg, reportCallIssue
    await send.aenqueue("9182")  # error: arg-type, reportArgumentType
    await send.enqueue(1)  # error: misc, reportGeneralTypeIssues
    send.bind("9182")  # error: arg-type, reportArgumentType
    receipt.enqueue("9182")  # error: arg-type, reportArgumentType
    receipt.enqueue()  # error: call-arg, reportCallIssue
    receipt.enqueue(job=None, order_id=1)  # error: call-arg, reportCallIssue
    send.using(priority="high")  # error: arg-type, reportArgumentType
    send.using(run_after="tomorrow")  # error: arg-type, reportArgumentType
    send.using(headers={"a": 1})  # error: dict-item, reportArgumentType
    send.using(debounce="doc:7")  # error: arg-type, reportArgumentType
    send.using(throttle=60)  # error: arg-type, reportArgumentType
    send.using(expires="tomorrow")  # error: arg-type, reportArgumentType
    send.using(colour="red")  # error: call-arg, reportCallIssue
    send.using(notify="yes")  # error: arg-type, reportArgumentType
    send.using(key="a").enqueue("9182")  # error: arg-type, reportArgumentType
    send.using(key="a").bind()  # error: call-arg, reportCallIssue
    hf.enqueue_many([1])  # error: list-item, reportArgumentType
    hf.enqueue_many([send.enqueue(1)])  # error: list-item, reportArgumentType
    hf.enqueue("send", {"order_id": 1}, priority="high")  # error: arg-type, reportArgumentType
    hf.enqueue("send", {"order_id": 1}, colour="red")  # error: call-arg, reportCallIssue
    await hf.aenqueue("send", lease="long")  # error: arg-type, reportArgumentType
    hf.bind("send", tx=None)  # error: call-arg, reportCallIssue
    number: int = send.enqueue(1).id  # error: assignment, reportAssignmentType
    print(number)


def run() -> None:
    hf.worker(concurrency="x")  # error: arg-type, reportArgumentType
    hf.worker(colour="red")  # error: call-arg, reportCallIssue
    Holdfast("sqlite:///shop.db", pool_size="ten")  # error: arg-type, reportArgumentType
    Holdfast("sqlite:///shop.db", colour="red")  # error: call-arg, reportCallIssue


@hf.job(queue=3)  # error: call-overload, reportArgumentType
def misplaced() -> None: ...


@hf.enqueue_hook  # error: type-var, reportArgumentType
def counted(new: Enqueueing) -> int:
    return len(new.headers)


@hf.foreign.pdo().handler("urn:order")
def from_php(order_id: int) -> None: ...


from_php.enqueue(order_id=1)  # error: attr-defined, reportAttributeAccessIssue
