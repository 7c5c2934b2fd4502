"""Events in an application's own tests: delivered inline, where no broker is needed for it."""

from collections.abc import Iterator, Sequence

import pytest

from holdfast import CloudEvent, Holdfast, Job, Retry
from holdfast.sinks import Delivered, Function, Jobs, Message, Nats, Outcome, SinkDown
from holdfast.testing.inline import run_due


@pytest.fixture(params=["sqlite_url", "pg_url", "mariadb_url"])
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    app = Holdfast(request.getfixturevalue(request.param))
    app.migrate()
    yield app
    app.close()


class Kept:
    """A sink of the test's own."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.down = False
        self.closed = 0

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if self.down:
            raise SinkDown("nobody is there")
        self.got += [message.event.data for message in messages]
        return [Delivered("kept")] * len(messages)

    async def close(self) -> None:
        self.closed += 1


def test_events_arrive_at_functions_queues_and_sinks_of_the_test(hf: Holdfast) -> None:
    got: list[object] = []
    kept = Kept()

    @hf.job
    def work(job: Job, event: CloudEvent) -> None:
        got.append(("job", event.id))
        hf.publish("work.done", event.data["id"])

    hf.route("order.*", to=Function(lambda message: got.append(message.event.data)), name="function", ordered=True)
    hf.route("order.*", to=Jobs(work), name="jobs")
    hf.route("work.*", to=kept, name="own")
    for number in range(3):
        hf.publish("order.created", {"id": number}, key="k")
    ran = run_due(hf)
    assert [one for one in got if isinstance(one, dict)] == [{"id": number} for number in range(3)]
    assert sorted(kept.got) == [0, 1, 2]  # type: ignore[type-var]
    assert {one.kind for one in ran} == {"route:function", "route:jobs", "route:own", "work"}
    assert {one.outcome for one in ran} == {"done"}
    assert kept.closed == 1


def test_what_is_for_a_broker_stays(hf: Holdfast) -> None:
    hf.route("#", to=Nats("nats://127.0.0.1:1", subject="events"), name="events")
    event = hf.publish("order.created", 1)
    assert run_due(hf) == []
    assert hf.get(event.id).state == "pending"


def test_a_function_that_raises_is_told_and_tried_again_later(hf: Holdfast) -> None:
    def deliver(message: Message) -> None:
        raise ValueError("no")

    hf.route("#", to=Function(deliver), name="all", retry=Retry(max_attempts=2, first_delay=60))
    event = hf.publish("order.created", 1)
    with pytest.raises(Exception, match="no"):
        run_due(hf)
    assert hf.get(event.id).attempts == 1
    [ran] = run_due(hf, ahead=3600, raise_errors=False)
    assert ran.outcome == "dead"


def test_a_sink_that_is_down_is_called_once_and_its_events_stay(hf: Holdfast) -> None:
    kept = Kept()
    kept.down = True
    hf.route("#", to=kept, name="all")
    event = hf.publish("order.created", 1)
    run_due(hf)
    view = hf.get(event.id)
    assert (view.state, view.attempts) == ("pending", 0)
    kept.down = False
    run_due(hf)
    assert kept.got == [1]
