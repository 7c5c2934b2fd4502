"""`holdfast dashboard` and `holdfast top`: safe by default, and the same overview for people, pipes and programs."""

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from holdfast import jobs
from holdfast.cli.top import headline, screen_of, sparkline
from holdfast.context import Context
from holdfast.dashboard.reading import NEWEST, history, overview
from holdfast.dashboard.setting import Setting
from holdfast.dashboard.talk import run as talk
from holdfast.store import Store, Stores
from tests.cli.conftest import Run, add, kill


@contextmanager
def serving(*args: str, **env: str) -> Iterator[str]:
    """Run the command as a process, and return the address that it prints."""
    # A shell in the background ignores SIGINT, and its children with it.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; from holdfast.cli import main; main()"]
    child = subprocess.Popen(
        [*command, "dashboard", "--port", "0", *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "http://" in line, line
        yield line.split(" on ")[1].split(" ")[0]
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def status(address: str, data: bytes | None = None, **headers: str) -> int:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(address, data, said)  # noqa: S310 - our own address
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_by_itself_it_is_for_this_machine_and_to_look_only(app: str, store: Store) -> None:
    kill(store, 2)
    with serving(app) as address:
        assert address.startswith("http://127.0.0.1:")
        assert status(address) == 200
        assert status(f"{address}dead") == 200
        assert status(address, host="evil.example") == 421
        assert status(f"{address}do/pause", b"queue=mail", Sec_Fetch_Site="same-origin") == 403
    assert store.run(jobs.pauses()) == []


def test_actions_are_done_where_they_are_allowed_and_audited_with_the_actor(app: str, store: Store) -> None:
    with serving(app, "--allow-actions=pause", "--actor", "ann@web1", "--base-path", "/ops") as address:
        assert address.endswith("/ops/")
        assert status(f"{address}do/pause", b"queue=mail", Sec_Fetch_Site="same-origin") == 200
        assert status(f"{address}do/pause", b"queue=mail", Origin="http://evil.example") == 403
        assert status(f"{address}do/drain", b"id=x", Sec_Fetch_Site="same-origin") == 403
    [pause] = store.run(jobs.pauses())
    assert (pause.name, pause.by) == ("mail", "ann@web1")


def test_another_address_is_refused_without_a_password(run: Run, app: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "web1"):
        refused = run("dashboard", app, "--host", host, code=2)
        assert "can be reached by others" in refused.stderr
        assert "HOLDFAST_DASHBOARD_PASSWORD" in refused.stderr


def test_a_password_and_a_header_of_a_proxy_say_who_somebody_is(app: str, store: Store, place: Path) -> None:
    (place / "secret").write_text("correct horse\n")
    word = base64.b64encode(b"ada:correct horse").decode()
    with serving(app, "--user", "ada", "--password-file", "secret", "--host", "0.0.0.0", "--allow-actions") as address:
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert status(here) == 401
        assert status(here, Authorization=f"Basic {word}") == 200
        assert status(f"{here}static/x/app.js") == 401
    with serving(app, "--trust-user-header", "X-User", "--allow-actions") as address:
        assert status(address) == 403
        assert status(f"{address}do/pause", b"queue=images", Sec_Fetch_Site="same-origin", X_User="grace") == 200
    assert [one.by for one in store.run(jobs.pauses())] == ["grace"]


def test_a_header_counts_only_where_it_is_named(app: str, store: Store) -> None:
    with serving(app, "--allow-actions", "--actor", "ann@web1") as address:
        said = {"X_User": "grace", "X_Forwarded_User": "grace", "Remote_User": "grace"}
        assert status(f"{address}do/pause", b"queue=mail", Sec_Fetch_Site="same-origin", **said) == 200
    assert [one.by for one in store.run(jobs.pauses())] == ["ann@web1"]


def test_a_token_lets_in_from_elsewhere_and_insecure_lets_everybody_look(app: str, store: Store, place: Path) -> None:
    (place / "token").write_text("0123456789abcdef\n")
    with serving(app, "--token-file", "token", "--host", "0.0.0.0") as address:
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert [status(here), status(here, Authorization="Bearer 0123456789abcdee")] == [401, 401]
        assert status(here, Authorization="Bearer 0123456789abcdef") == 200
    with serving(app, "--insecure", "--host", "0.0.0.0") as address:
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert status(here) == 200
        assert status(f"{here}do/pause", b"queue=mail", Sec_Fetch_Site="same-origin") == 403
    assert store.run(jobs.pauses()) == []


def test_no_client_can_write_the_header_of_the_proxy_in_another_way(app: str) -> None:
    with serving(app, "--trust-user-header", "X-Forwarded-User", "--allow-actions") as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=10)
        connection.request("GET", "/", headers={"X_Forwarded_User": "admin", "X_Forwarded-User": "admin"})
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.parametrize(
    "options, words",
    [
        (("--allow-actions=launch",), "there is no action 'launch'"),
        (("--allow-actions", "shop:hf"), "write APP before it"),
        (("--base-path", "ops"), "begins with a slash"),
        (("--app", "nowhere:hf"), "nowhere"),
    ],
)
def test_wrong_options_are_told(run: Run, app: str, options: tuple[str, ...], words: str) -> None:
    refused = run("dashboard", *options, "--url", "sqlite:///shop.db", code=2)
    assert words in refused.stderr


def test_without_tables_it_says_what_to_do(run: Run, place: Path) -> None:
    refused = run("dashboard", "--url", "sqlite:///none.db", code=3)
    assert "migrate apply" in refused.stderr


def told(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_top_tells_the_overview_once_in_a_pipe(run: Run, app: str, store: Store) -> None:
    add(store, 3)
    kill(store, 2, message="no such order")
    result = run("top", app)
    assert "3 due" in result.stdout
    assert "2 dead" in result.stdout
    assert "ValueError: no such order" in result.stdout
    assert "no worker is alive" in result.stdout
    assert "\x1b" not in result.stdout


def test_top_is_json_for_programs(run: Run, app: str, store: Store) -> None:
    add(store, 3)
    kill(store, 2)
    found = told(run("top", "--json", "--app", app))
    assert (found["due"], found["dead"], found["workers"]) == (3, 2, [])
    [queue] = found["queues"]  # type: ignore[misc]
    assert queue["queue"] == "mail"


def test_top_draws_the_same_on_a_terminal(app: str, store: Store) -> None:
    add(store, 3)
    kill(store, 2)
    setting = Setting(Context(Stores(store)))
    seen, recent = talk(overview(setting)), talk(history(setting, NEWEST))
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
    console.print(screen_of(seen, recent))
    text = console.export_text()
    console.file.close()
    assert headline(seen) in text
    assert "dead letters" in text
    assert sparkline([0, 1, 2]) == "▁▅█"
    assert sparkline([]) == sparkline([0, 0]) == ""
