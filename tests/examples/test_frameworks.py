"""The examples for frameworks: a real server, a real client, the database, and a worker."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast, admin
from holdfast.worker import registry

ROOT = Path(__file__).parents[2]
LITESTAR = """
import os

from litestar import Litestar, get, post
from litestar.handlers import asgi

from holdfast import Holdfast
from holdfast.dashboard import Access

hf = Holdfast(os.environ["DATABASE_URL"])
greeted = []


@hf.job
async def greet(name: str) -> str:
    greeted.append(name)
    return f"hello {name}"


@post("/greetings")
async def ask(data: dict[str, str]) -> dict[str, str]:
    return {"id": (await greet.aenqueue(**data)).id}


@get("/greetings")
async def tell() -> list[str]:
    return greeted


board = hf.dashboard(access=lambda _: Access())
app = Litestar(
    [ask, tell, asgi("/holdfast", is_mount=True)(board.asgi)], lifespan=[hf.lifespan(worker=True, poll=0.1)]
)
"""
HOLDFAST = ["-c", "from holdfast.cli import main; main()"]


class Place:
    """A folder (of an example, unless its path is given), its database, and the processes that run there."""

    def __init__(self, folder: str, url: str, *, migrate: bool = True) -> None:
        self.folder = ROOT / "examples" / folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.hf = Holdfast(url)
        if migrate:
            self.hf.migrate()
            self.hf.close()
        self.env |= {"DATABASE_URL": url, "SHOP_TOKEN": "secret", "PYTHONPATH": f"{self.folder}:{ROOT / 'src'}"}

    @contextmanager
    def running(self, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        try:
            yield process
        finally:
            process.terminate()
            code = process.wait(60)
        # uvicorn ends by the signal itself once it is done; waitress and Python's own end by an interrupt.
        assert code in (0, -15), log.read_text()

    @contextmanager
    def serving(self, log: Path, port: int, *words: str) -> Iterator[httpx.Client]:
        with (
            self.running(log, *words) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        ):
            until(lambda: answers(client) or process.poll() is not None, log)
            assert process.poll() is None, log.read_text()
            yield client


def answers(client: httpx.Client) -> bool:
    try:
        client.get("/")
    except httpx.TransportError:
        return False
    return True


def until(true: Callable[[], Any], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def mails() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A mail server: its address, and what it was asked to send."""
    taken: list[dict[str, Any]] = []

    class Mail(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps({"id": f"mail-{taken[-1]['order_id']}"}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Mail) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()


@pytest.mark.parametrize("database", ["sqlite_url", "pg_url"])
def test_fastapi(
    database: str, port: int, mails: tuple[str, list[dict[str, Any]]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = Place("fastapi", request.getfixturevalue(database))
    mail_url, taken = mails
    place.env["MAIL_URL"] = mail_url
    log = tmp_path / "log"
    with place.serving(log, port, "-m", "uvicorn", "shop.web:app", "--port", str(port)) as client:
        refused = client.post("/orders", json={"customer": "nobody", "total": "1.00"})
        placed = client.post("/orders", json={"customer": "ada", "total": "9.90"})
        assert (refused.status_code, placed.status_code) == (422, 201), log.read_text()
        order = f"/orders/{placed.json()['id']}"
        until(lambda: client.get(order).json()["receipt"], log)
        assert client.get(order).json()["receipt"] == f"mail-{placed.json()['id']}"
        # The receipt of the order that was refused went with it.
        assert [(one["customer"], one["total"]) for one in taken] == [("ada", "9.90")]
        assert client.get("/holdfast/").status_code in (401, 403, 404)
        page = client.get("/holdfast/", headers={"authorization": "Bearer secret"})
        assert (page.status_code, "Holdfast" in page.text) == (200, True)
    assert "Application shutdown complete" in log.read_text()
    with place.hf:
        [job] = place.hf.store.run(admin.list_jobs(admin.Filter(states=("done",))))
        assert (job.kind, job.result) == ("send_receipt", f"mail-{taken[0]['order_id']}")
        # The worker has left as one that was told to.
        [worker] = place.hf.store.run(registry.workers())
        assert registry.status_of(worker) == "stopped"


def test_starlette(sqlite_url: str, port: int, tmp_path: Path) -> None:
    place = Place("starlette", sqlite_url)
    log = tmp_path / "log"
    with place.serving(log, port, "-m", "uvicorn", "hooks:app", "--port", str(port)) as client:
        answers = [client.post("/hooks/stripe", json={"id": "evt_1", "amount": 990}).json() for _ in range(2)]
        assert answers == [{"new": True}, {"new": False}]
        until(lambda: client.get("/total").json() == {"total": 990}, log)


def test_litestar(sqlite_url: str, port: int, tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(LITESTAR, "utf-8")
    place = Place(str(tmp_path), sqlite_url)
    log = tmp_path / "log"
    with place.serving(log, port, "-m", "uvicorn", "greetings:app", "--port", str(port)) as client:
        answer = client.post("/greetings", json={"name": "ada"})
        assert answer.status_code == 201, answer.text
        until(lambda: client.get("/greetings").json() == ["ada"], log)
        page = client.get("/holdfast/jobs")
        assert (page.status_code, "greet" in page.text) == (200, True)
    with place.hf:
        [job] = place.hf.store.run(admin.list_jobs(admin.Filter(states=("done",))))
        assert (job.id, job.result) == (answer.json()["id"], "hello ada")
        # The worker was drained with the server, and has left.
        [worker] = place.hf.store.run(registry.workers())
        assert registry.status_of(worker) == "stopped"


def test_a_server_without_tables_says_so_and_does_not_start(port: int, tmp_path: Path) -> None:
    place = Place("starlette", f"sqlite:///{tmp_path}/empty.db", migrate=False)
    command = [sys.executable, "-m", "uvicorn", "hooks:app", "--port", str(port)]
    done = subprocess.run(command, cwd=place.folder, env=place.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "SchemaMissing" in done.stderr


@pytest.mark.parametrize("database", ["sqlite_url", "mariadb_url"])
def test_flask(database: str, port: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = Place("flask", request.getfixturevalue(database))
    log, worker_log = tmp_path / "log", tmp_path / "worker"
    serve = ("-m", "waitress", "--listen", f"127.0.0.1:{port}", "--call", "shop.web:make_app")
    with (
        place.running(worker_log, *HOLDFAST, "worker", "shop.work:hf", "--poll", "0.1"),
        place.serving(log, port, *serve) as client,
    ):
        assert client.post("/subscribers", data={"email": "nobody"}).status_code == 422
        assert client.post("/subscribers", data={"email": "ada@example.org"}).status_code == 201
        until(lambda: client.get("/subscribers/ada@example.org").json()["confirmed"], worker_log)
        assert client.get("/subscribers/nobody").status_code == 404
        page = client.get("/holdfast/", headers={"authorization": "Bearer secret"})
        assert (page.status_code, "Holdfast" in page.text) == (200, True)
