"""Logs: every record that a handler writes names its job, ends read well, and the application's own set-up stays."""

import asyncio
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, Run, events, jobs, logs
from holdfast.cli.logs import JsonLines, Lines
from tests.observe.spans import Seen, trace_of
from tests.observe.test_http import enqueue, place  # noqa: F401 - a fixture
from tests.worker.stage import Stage

log = logging.getLogger("shop")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(logs.JobContext())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def about(self, message: str) -> dict[str, Any]:
        [record] = [one for one in self.records if one.getMessage() == message]
        return {name: getattr(record, name) for name in logs.FIELDS}


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)


def test_records_of_handlers_name_their_job_and_others_name_none(stage: Stage, kept: Kept) -> None:
    @stage.hf.job(queue="mail")
    async def send(n: int) -> None:
        log.info("plain %d", n)
        await asyncio.sleep(0.01)
        await asyncio.gather(asyncio.create_task(deeper(n)), asyncio.to_thread(log.info, "thread %d", n))

    async def deeper(n: int) -> None:
        log.info("deeper %d", n)

    @stage.hf.job
    def on_a_thread() -> None:
        log.info("on a thread")

    jobs = [send.using(headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}).enqueue(n=n) for n in range(3)]
    other = on_a_thread.enqueue()
    log.info("outside")
    stage.work(poll=0.02)
    for n, job in enumerate(jobs):
        for message in ("plain", "deeper", "thread"):
            said = kept.about(f"{message} {n}")
            worker = said.pop("worker")
            assert worker
            assert said == {
                "job_id": job.id,
                "job_kind": "send",
                "job_queue": "mail",
                "job_attempt": 1,
                "trace_id": "a" * 32,
            }
    assert kept.about("on a thread")["job_id"] == other.id
    assert set(kept.about("outside").values()) == {""}


def test_a_record_names_the_job_that_runs_where_a_thread_is_ahead_of_the_loop() -> None:
    """A thread takes one quick job after the other, and the loop hears of the ends of several at once."""
    with Holdfast("sqlite:///:memory:") as hf:
        for n in range(2):
            hf.enqueue("quick", {"n": n}, check=False)
        first, second = hf.store.run(jobs.claim("default", limit=2))
    slot = object()
    over = SimpleNamespace(slot=slot, started=1.0, lease=first)
    runs = SimpleNamespace(slot=slot, started=2.0, lease=second)
    elsewhere = SimpleNamespace(slot=object(), started=3.0, lease=first)
    token = logs.spot.set(logs.Spot("w", slot, [over, runs, elsewhere]))
    try:
        assert logs.current()["job_id"] == second.job_id
        over.started = 2.0
        assert "job_id" not in logs.current(), "a call for both"
    finally:
        logs.spot.reset(token)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "never_waits"])
def test_a_task_that_outlives_its_job_keeps_it_and_never_names_the_next_in_its_slot(
    stage: Stage, kept: Kept, waits: bool
) -> None:
    left: list[asyncio.Task[None]] = []
    later = asyncio.Event()

    async def linger(n: int) -> None:
        await later.wait()
        log.info("left %d", n)

    @stage.hf.job
    async def leave(n: int) -> None:
        left.append(asyncio.create_task(linger(n)))
        asyncio.get_running_loop().call_later(0.03, log.info, "called %d", n)
        if waits:
            await asyncio.sleep(0)

    @stage.hf.job
    async def follow() -> None:
        log.info("follows")
        later.set()
        await asyncio.sleep(0.05)
        await asyncio.gather(*left, asyncio.create_task(mine()))

    async def mine() -> None:
        log.info("mine")

    jobs = [leave.enqueue(n=n) for n in range(3)]
    last = follow.enqueue()
    stage.work(poll=0.02, concurrency=1)
    for message in ("follows", "mine"):
        assert kept.about(message)["job_id"] == last.id
    for n, job in enumerate(jobs):
        for message in ("left", "called"):
            # Of the first job of a kind nobody knows yet whether it waits.
            assert kept.about(f"{message} {n}")["job_id"] == (job.id if waits or n == 0 else "")


def test_a_task_of_a_call_for_several_jobs_that_outlives_them_names_their_kind(stage: Stage, kept: Kept) -> None:
    left: list[asyncio.Task[None]] = []
    later = asyncio.Event()

    async def linger() -> None:
        await later.wait()
        log.info("left")

    @stage.hf.bulk(size=5)
    async def together(items: list[int]) -> None:
        left.append(asyncio.create_task(linger()))

    @stage.hf.job
    async def follow() -> None:
        later.set()
        await asyncio.gather(*left)

    stage.hf.enqueue_many([together.bind(n) for n in range(5)])
    follow.enqueue()
    stage.work(poll=0.02, concurrency=1)
    said = kept.about("left")
    assert (said["job_kind"], said["job_id"]) == ("together", "")


def test_records_of_bulk_handlers_name_the_kind_and_those_of_runs_their_job(stage: Stage, kept: Kept) -> None:
    @stage.hf.bulk(size=5)
    async def together(items: list[int]) -> None:
        log.info("together %d", len(items))

    async def step() -> None:
        log.info("step")

    @stage.hf.workflow
    async def fulfil(run: Run) -> None:
        await run.step(step)

    stage.hf.enqueue_many([together.bind(n) for n in range(5)])
    fulfil.start(id="a")
    stage.work(poll=0.02)
    said = kept.about("together 5")
    assert (said["job_kind"], said["job_id"]) == ("together", "")
    said = kept.about("step")
    assert (said["job_kind"], bool(said["job_id"])) == ("fulfil@1", True)


def test_records_of_a_traced_attempt_have_the_trace_of_its_own_span(stage: Stage, kept: Kept, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider, join="link")

    @stage.hf.job(queue="mail")
    async def send() -> None:
        log.info("traced")

    with seen.tracer.start_as_current_span("request"):
        send.enqueue()
    stage.work(poll=0.02)
    said = kept.about("traced")["trace_id"]
    assert said == f"{trace_of(seen.one('process mail')):032x}"
    assert said != f"{trace_of(seen.one('request')):032x}"


def test_what_the_application_says_of_a_record_stays(kept: Kept) -> None:
    log.info("mine", extra={"job_id": "my own"})
    assert kept.about("mine")["job_id"] == "my own"


def test_a_record_factory_marks_records_for_handlers_of_others() -> None:
    before = logging.getLogRecordFactory()
    try:
        logs.install()
        logs.install()
        record = logging.getLogger("x").makeRecord("x", logging.INFO, "", 0, "said", (), None)
        assert record.__dict__["job_id"] == ""
    finally:
        logging.setLogRecordFactory(before)


def record(**fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("shop", logging.INFO, "", 0, "said %s", ("this",), None)
    made.__dict__.update(fields)
    return made


def test_json_lines_have_the_event_the_job_and_what_extra_gave() -> None:
    event = {"event": "JobDead", "id": "7", "kind": "send", "error": "ValueError: no", "traceback": "Traceback …"}
    line = json.loads(JsonLines().format(record(holdfast=event)))
    assert (line["event"], line["job_id"], line["traceback"]) == ("JobDead", "7", "Traceback …")
    line = json.loads(JsonLines().format(record(order=9182, job_id="8", job_kind="send", trace_id="", odd=object())))
    assert (line["order"], line["job_id"], line["message"]) == (9182, "8", "said this")
    assert "trace_id" not in line
    assert "odd" in line


class Speechless:
    def __str__(self) -> str:
        raise ValueError("no words")


def test_whatever_extra_gives_the_line_is_there_and_is_json() -> None:
    itself: dict[str, Any] = {}
    itself["again"] = itself
    deep: list[Any] = []
    for _ in range(3_000):
        deep = [deep]
    line = JsonLines().format(
        record(
            odd=Speechless(),
            keys={Speechless(): 1},
            itself=itself,
            deep=deep,
            never=float("nan"),
            large=10**5_000,
            time="noon",
            level=7,
            stack_info="Stack (most recent call last): here",
        )
    )

    def not_json(said: str) -> None:
        raise AssertionError(f"{said} is not JSON")

    read = json.loads(line, parse_constant=not_json)
    assert read["odd"] == "<tests.observe.test_logs.Speechless cannot be written: ValueError>"
    assert read["never"] == "nan"
    assert (read["level"], read["extra_level"], read["extra_time"]) == ("info", 7, "noon")
    assert read["stack"].endswith("here")


@pytest.mark.parametrize(
    "said", ["bad password=hunter2", "http://shop:80/ was asked by ann@shop", "x\ny: password='a b'"]
)
def test_what_is_hidden_in_a_text_leaves_the_object_whole(said: str) -> None:
    line = json.loads(JsonLines().format(record(order={"error": said, 7: [said, 1.5, None]}, after="here")))
    assert line["after"] == "here"
    assert line["order"]["7"][1:] == [1.5, None]
    assert "hunter2" not in str(line)
    assert "a b" not in str(line)


def test_lines_for_people_say_how_a_job_ended_and_why() -> None:
    common = {"id": "7", "kind": "send", "queue": "mail", "attempt": 2, "waited": 0.2}
    done = Lines().format(record(holdfast={"event": "JobDone", "duration": 0.0123, **common}))
    assert done.endswith("INFO done send 7 #2 (mail) in 12 ms")
    failed = {"event": "JobRetried", "duration": 2.5, "delay": 10.0, "error": "ValueError: no", **common, "waited": 3.0}
    text = Lines().format(record(holdfast=failed | {"traceback": "Traceback\n  line"}))
    first, *rest = text.splitlines()
    assert first.endswith("failed send 7 #2 (mail) in 2.5 s after a wait of 3.0 s; again in 10.0 s: ValueError: no")
    assert rest == ["Traceback", "  line"]
    late = {"event": "FailedAfterDone", "duration": 0.5, "error": "ValueError: no", "traceback": "Traceback", **common}
    first, *rest = Lines().format(record(holdfast=late)).splitlines()
    assert first.endswith("failed after it was done: send 7 #2 (mail) in 500 ms: ValueError: no")
    assert rest == ["Traceback"]
    mine = Lines().format(record(job_id="7", job_kind="send", job_attempt=2))
    assert mine.endswith("said this [send 7 #2]")


def test_each_value_of_an_event_is_masked_by_itself() -> None:
    broker = "RedisStream('redis://127.0.0.1:6379/0', stream='orders')"
    event = events.MessageUnreadable("w1", broker, "paid", "orders@17-0", "see amqp://shop:hunter2@mq/ for more")
    told = record(msg="%s", args=(event,), holdfast={"event": event.name, **event.fields()})
    for line in (Lines().format(told), json.loads(JsonLines().format(told))["message"]):
        assert f"broker={broker}, kind=paid, position=orders@17-0, reason=see amqp://shop:***@mq/" in line


def worker(place: Path, *words: str, until: str, tty: bool = False) -> str:  # noqa: F811 - a folder
    """Run a worker until it has said something; return all that it said."""
    code = "from holdfast_probe import main; main()"
    command = [sys.executable, "-c", code, "worker", "shop:hf", "--poll", "0.05", *words]
    reader, writer = pty.openpty() if tty else os.pipe()
    said: list[str] = []
    with subprocess.Popen(command, cwd=place, stderr=writer, stdout=subprocess.DEVNULL) as process:
        os.close(writer)
        listener = threading.Thread(target=_listen, args=(reader, said))
        listener.start()
        deadline = time.monotonic() + 60
        try:
            while not re.search(until, "".join(said)) and process.poll() is None:
                assert time.monotonic() < deadline, "".join(said)
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
        listener.join()
    return "".join(said)


def _listen(reader: int, said: list[str]) -> None:
    with open(reader, "rb", buffering=0) as stream:
        try:
            while part := stream.read(4096):
                said.append(part.decode())
        except OSError:
            # So a terminal says that nobody is there any more.
            return


def test_a_person_at_a_terminal_sees_a_line_for_each_job(place: Path) -> None:  # noqa: F811
    enqueue(place, "greet", "name='Ada'", "name='again'")
    text = worker(place, until="failed greet", tty=True)
    assert re.search(r"INFO done greet [0-9a-f-]{36} #1 \(default\) in \d+ ms", text)
    assert re.search(r"WARNING failed greet .*ValueError: no such name\s+Traceback", text)
    assert 'raise ValueError("no such name")' in text


def test_a_log_file_has_no_line_for_each_job_and_programs_get_json(place: Path) -> None:  # noqa: F811
    enqueue(place, "greet", "name='Ada'", "name='again'")
    text = worker(place, "--log-json", until="JobRetried")
    lines = [json.loads(line) for line in text.splitlines()]
    [failed] = [line for line in lines if line.get("event") == "JobRetried"]
    assert "no such name" in failed["traceback"]
    assert (failed["kind"], failed["job_id"]) == ("greet", failed["id"])
    assert not [line for line in lines if line.get("event") == "JobDone"]


def test_what_the_application_configured_stays(place: Path) -> None:  # noqa: F811
    shop = place / "shop.py"
    shop.write_text(f"import logging\nlogging.basicConfig(format='MINE %(message)s', level='INFO')\n{shop.read_text()}")
    enqueue(place, "greet", "name='again'")
    text = worker(place, until="MINE job retried")
    assert all(line.startswith("MINE") for line in text.splitlines() if "worker started" in line)
    assert "worker started" not in worker(place, "--log-level", "error", until="$", tty=False)


def test_a_file_says_how_to_log(place: Path) -> None:  # noqa: F811
    config = {
        "version": 1,
        "filters": {"job": {"()": "holdfast.logs.JobContext"}},
        "formatters": {"short": {"format": "FROM FILE %(message)s job=%(job_id)s"}},
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "short", "filters": ["job"]}},
        "root": {"level": "INFO", "handlers": ["err"]},
    }
    (place / "logging.json").write_text(json.dumps(config))
    assert "FROM FILE worker started" in worker(place, "--log-config", "logging.json", until="worker started")
    (place / "broken.json").write_text("{}")
    assert "--log-config" in worker(place, "--log-config", "broken.json", until="hint")
    (place / "logging.yaml").write_text("")
    assert "must end in" in worker(place, "--log-config", "logging.yaml", until="must end")
