"""What a worker's port answers, in one process and with several: metrics that add up, and probes."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import observe
from holdfast.cli.metrics import FRESH_SECONDS, page_of
from holdfast.flow import Steps, flow
from holdfast.observe import Depth, Folded
from holdfast.observe.keeping import SAMPLER
from holdfast.store import Store, migrate
from holdfast.worker import Worker, monitor, monitor_http
from holdfast.worker.rounds.beat import Beat
from tests.proxy import Proxy
from tests.servers import free_port
from tests.worker.stage import Stage

APP = """
import os, time
from holdfast import Holdfast, Job
hf = Holdfast("sqlite:///{db}")

@hf.job
async def greet(name: str) -> None:
    if name == "again":
        raise ValueError("no such name")
    if name == "more":
        await greet.aenqueue(name="Bob")

@hf.job
def block(seconds: float) -> None:
    time.sleep(seconds)

@hf.job
async def halt(seconds: float) -> None:
    time.sleep(seconds)

@hf.job(lease=2)
def die() -> None:
    os._exit(9)

@hf.job(lease=60)
def leave_a_child() -> None:
    worker = os.getppid()
    if os.fork() == 0:
        try:
            while True:  # as long as the worker is there
                os.kill(worker, 0)
                time.sleep(0.1)
        finally:
            os._exit(0)
    os._exit(9)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP.format(db=tmp_path / "shop.db"))
    store = Store(f"sqlite:///{tmp_path / 'shop.db'}")
    store.run(migrate.apply(store.migrations))
    store.close()
    return tmp_path


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def value(text: str, name: str) -> float:
    """Add up the values of a metric whose name, with labels, begins so."""
    found = re.findall(rf"^{re.escape(name)}[^ ]* ([0-9.e+-]+)$", text, re.MULTILINE)
    return sum(map(float, found))


def until(check: object) -> None:
    deadline = time.monotonic() + 60
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


@contextmanager
def worker(place: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    command = [sys.executable, "-m", "holdfast_probe", "worker", "shop:hf", "--http", str(port), *words]
    code = "from holdfast_probe import main; main()"
    command = [sys.executable, "-c", code, "worker", "shop:hf", "--http", str(port), "--poll", "0.05", *words]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: get(port, "/readyz")[0] == 200 or process.poll() is not None)
            yield process, port
        finally:
            process.kill()


def enqueue(place: Path, kind: str, *payloads: str) -> None:
    lines = "; ".join(f"shop.{kind}.enqueue({one})" for one in payloads)
    subprocess.run([sys.executable, "-c", f"import shop; {lines}"], cwd=place, check=True)


def test_a_worker_tells_what_it_counted_and_timed(place: Path) -> None:
    with worker(place) as (_, port):
        enqueue(place, "greet", "name='Ada'", "name='more'", "name='again'")
        until(lambda: value(get(port, "/metrics")[1], 'holdfast_attempts_total{queue="default",kind="greet"') >= 4)
        status, text = get(port, "/metrics")
    done = 'holdfast_attempts_total{queue="default",kind="greet",outcome="done"}'
    assert (status, value(text, done)) == (200, 3)
    assert value(text, 'holdfast_attempts_total{queue="default",kind="greet",outcome="retried"}') == 1
    assert value(text, 'holdfast_attempt_duration_seconds_count{queue="default",kind="greet"}') == 4
    assert value(text, 'holdfast_wait_seconds_count{queue="default"}') == 4
    assert value(text, 'holdfast_wait_seconds_bucket{queue="default",le="+Inf"}') == 4
    assert value(text, 'holdfast_jobs_enqueued_total{queue="default",kind="greet"}') == 1
    assert value(text, "holdfast_claim_duration_seconds_count") >= 1
    assert value(text, 'holdfast_worker_slots{state="free"}') == 20
    assert "nobody" not in text


def test_what_has_not_happened_yet_is_told_as_nothing(place: Path) -> None:
    """A counter that first appears as 1 has not increased, for Prometheus: the first dead letter would wake nobody."""
    with worker(place) as (_, port):
        dead = 'holdfast_attempts_total{queue="default",kind="greet",outcome="dead"} 0'
        until(lambda: dead in get(port, "/metrics")[1])


def test_a_worker_says_when_it_is_not_ready(place: Path) -> None:
    with worker(place, "--drain", "10") as (process, port):
        assert get(port, "/livez") == (200, "alive\n")
        enqueue(place, "block", "seconds=3")
        until(lambda: value(get(port, "/metrics")[1], 'holdfast_worker_slots{state="busy"}') == 1)
        process.send_signal(signal.SIGTERM)
        until(lambda: get(port, "/readyz")[0] == 503)
        assert get(port, "/livez")[0] == 200
        assert process.wait(20) == 0


def test_strange_requests_get_an_answer_and_harm_nothing(place: Path) -> None:
    with worker(place) as (_, port):
        assert get(port, "/etc/passwd")[0] == 404
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", method="POST", data=b"x")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=5)  # noqa: S310 - our own
        assert get(port, "/metrics?a=b")[0] == 200


def test_a_blocked_event_loop_is_told_by_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    board = monitor.Board()
    monkeypatch.setattr(monitor, "ALIVE_SECONDS", 0.01)
    board.take(monitor.Report(7, True, 0, 1, "{}"))
    time.sleep(0.02)
    assert board.silent() == [7]
    assert not board.ready()
    board.take(monitor.Report(7, True, 0, 1, "{}"))
    assert board.silent() == []


def test_several_processes_are_added_up_and_a_killed_one_leaves_no_gauge(place: Path) -> None:
    with worker(place, "--processes", "2", "--concurrency", "3") as (_, port):
        until(lambda: value(get(port, "/metrics")[1], "holdfast_worker_slots") == 6)
        enqueue(place, "greet", *[f"name='{n}'" for n in range(30)])
        done = 'holdfast_attempts_total{queue="default",kind="greet",outcome="done"}'
        until(lambda: value(get(port, "/metrics")[1], done) == 30)
        enqueue(place, "die", "")
        # The child is killed while it is busy: its slots go with it, what it counted stays.
        until(lambda: value(get(port, "/metrics")[1], "holdfast_worker_processes") == 1)
        text = get(port, "/metrics")[1]
        assert value(text, "holdfast_worker_slots") == 3
        assert value(text, done) == 30
        until(lambda: value(get(port, "/metrics")[1], "holdfast_worker_processes") == 2)
        assert get(port, "/readyz")[0] == 200


def test_what_a_killed_process_has_forked_does_not_keep_its_gauges(place: Path) -> None:
    with worker(place, "--processes", "2", "--concurrency", "3") as (_, port):
        until(lambda: value(get(port, "/metrics")[1], "holdfast_worker_processes") == 2)
        enqueue(place, "leave_a_child", "")
        until(lambda: value(get(port, "/metrics")[1], "holdfast_worker_processes") == 1)


def test_one_who_asks_a_letter_at_a_time_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_http, "CLIENT_SECONDS", 0.1)
    ours, theirs = socket.socketpair()
    answering = threading.Thread(target=monitor_http.answer, args=(ours, monitor.Board()), daemon=True)
    answering.start()
    began = time.monotonic()
    while answering.is_alive() and time.monotonic() - began < 2:
        with suppress(OSError):
            theirs.send(b"G")
        answering.join(0.02)
    theirs.close()
    assert not answering.is_alive()


def test_a_port_that_is_taken_is_told_before_anything_runs(place: Path) -> None:
    with worker(place) as (_, port):
        code = "from holdfast_probe import main; main()"
        words = [sys.executable, "-c", code, "worker", "shop:hf", "--http", str(port)]
        told = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, timeout=30)
    assert told.returncode == 2
    assert "--http" in told.stderr
    assert "in use" in told.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_heartbeat_file_says_that_the_worker_is_alive(place: Path, processes: str) -> None:
    beat = place / "beat"
    with worker(place, "--heartbeat-file", str(beat), "--processes", processes):
        until(beat.exists)
        assert _alive(beat) == (0, "")
        os.utime(beat, (1, 1))
        until(lambda: beat.stat().st_mtime > 1)
    os.utime(beat, (1, 1))
    code, said = _alive(beat)
    assert code == 1
    assert "not alive" in said
    beat.unlink()
    assert _alive(beat)[0] == 1
    assert _alive()[0] == 2


def _alive(*words: Path) -> tuple[int, str]:
    code = "import sys; from holdfast_probe import main; main()"
    command = [sys.executable, "-c", code, "worker-alive", *map(str, words)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.returncode, told.stderr


def test_the_probe_loads_nothing_of_holdfast(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv[1:] = ['worker-alive', sys.argv[1]]\n"
        "from holdfast_probe import main\n"
        "try: main()\n"
        "except SystemExit: print([name for name in sys.modules if name.split('.')[0] in ('holdfast', 'click')])"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_fleet_is_printed_and_served(place: Path) -> None:
    enqueue(place, "greet", "name='Ada'", "name='Bob'")
    code = "from holdfast_probe import main; main()"
    words = [sys.executable, "-c", code, "metrics", "--url", f"sqlite:///{place / 'shop.db'}"]
    text = subprocess.run(words, cwd=place, capture_output=True, text=True, check=True).stdout
    assert value(text, 'holdfast_queue_due{queue="default"}') == 2
    assert value(text, 'holdfast_queue_oldest_due_seconds{queue="default"}') > 0
    assert value(text, 'holdfast_workers{status="alive"}') == 0
    assert abs(value(text, "holdfast_sample_timestamp_seconds") - time.time()) < 60
    port = free_port()
    with subprocess.Popen([*words, "--http", str(port)], cwd=place, stderr=subprocess.PIPE) as serving:
        try:
            until(lambda: get(port, "/metrics")[0] == 200)
            assert value(get(port, "/metrics")[1], 'holdfast_queue_due{queue="default"}') == 2
            assert get(port, "/readyz")[0] == 200
        finally:
            serving.kill()


@flow
def sampled(due: int) -> Steps[None]:
    """Write what a worker would have seen in the queues."""
    yield from observe.add(SAMPLER, Folded(depths={"default": Depth(due, oldest=12.5)}))


def test_the_fleet_is_told_by_what_a_worker_has_sampled_while_that_is_fresh(place: Path) -> None:
    enqueue(place, "greet", "name='Ada'")
    with closing(Store(f"sqlite:///{place / 'shop.db'}")) as store:
        store.now = datetime.now(UTC) - timedelta(seconds=FRESH_SECONDS + 5)
        store.run(sampled(5))
        store.now = None
        assert value(page_of(store), 'holdfast_queue_due{queue="default"}') == 1
        store.run(sampled(7))
        page = page_of(store)
    assert value(page, 'holdfast_queue_due{queue="default"}') == 7
    assert value(page, 'holdfast_queue_oldest_due_seconds{queue="default"}') == 12.5


def test_the_port_of_the_fleet_says_when_there_is_no_database_and_goes_on_after_it(
    pg_url: str, pg_proxy: Proxy
) -> None:
    with closing(Store(pg_url)) as store:
        store.run(migrate.apply(store.migrations))
    port, there = free_port(), pg_proxy.target_port
    code = "from holdfast_probe import main; main()"
    words = [sys.executable, "-c", code, "metrics", "--url", pg_proxy.url(pg_url), "--http", str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as serving:
        try:
            until(lambda: get(port, "/readyz")[0] == 200)
            pg_proxy.target_port = free_port()
            pg_proxy.reset_all()
            until(lambda: get(port, "/metrics")[0] == 503)
            assert get(port, "/readyz")[0] == 503
            assert get(port, "/livez")[0] == 200
            pg_proxy.target_port = there
            until(lambda: get(port, "/metrics")[0] == 200)
            assert get(port, "/readyz")[0] == 200
        finally:
            serving.kill()


def test_a_worker_without_its_database_is_not_ready_until_it_has_one_again(
    pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.worker.READY_SECONDS", 2.0)
    monkeypatch.setattr(Beat, "every_seconds", 0.05)
    app, there = pg_stage.app(pg_proxy.url(pg_stage.url)), pg_proxy.target_port

    @app.job
    async def noop() -> None: ...

    async def body(worker: Worker) -> None:
        await pg_stage.until(lambda: worker.is_ready)
        pg_proxy.target_port = free_port()
        pg_proxy.reset_all()
        await pg_stage.until(lambda: not worker.is_ready)
        pg_proxy.target_port = there
        await pg_stage.until(lambda: worker.is_ready)

    pg_stage.work(body, hf=app)


NO_DESCRIPTORS = """
import resource, socket, sys, threading, time
from holdfast.worker import monitor_http
from holdfast.worker.monitor import Board

server = monitor_http.listen(("127.0.0.1", 0))
thread = monitor_http.serve(server, Board())
usual = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
print(server.getsockname()[1], flush=True)
sys.stdin.readline()
assert thread.is_alive(), "it has given up"
resource.setrlimit(resource.RLIMIT_NOFILE, usual)
print("again", flush=True)
sys.stdin.readline()
"""


def test_a_probe_is_answered_again_after_there_were_no_file_descriptors() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", NO_DESCRIPTORS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        port = int(child.stdout.readline())
        # It cannot be accepted, and is once there are descriptors again.
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            time.sleep(0.3)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "again\n"
            client.settimeout(30)
            assert b"200 OK" in client.recv(4096)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
