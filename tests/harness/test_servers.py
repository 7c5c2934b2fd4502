"""What the harness promises to the tests that use real servers."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import servers
from tests.servers import RUN, PgBouncer, Postgres, Unavailable, debian_mirror, faketime_env, need


def alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_committed_rows_survive_an_immediate_restart() -> None:
    with Postgres() as server:
        url = server.fresh_database()
        with psycopg.connect(url) as connection:
            connection.execute("create table marks as select 'kept' as mark")
        before = server.pid
        server.restart("immediate")
        assert not alive(before)
        assert server.execute("select mark from marks", url.rpartition("/")[2]) == [("kept",)]


def test_a_discarded_server_leaves_no_process_and_no_folder() -> None:
    with Postgres() as server:
        pid = server.pid
        assert alive(pid)
    assert not alive(pid)
    assert not server.folder.exists()


def test_a_script_that_forgets_its_server_leaves_no_process() -> None:
    script = "from tests.servers import Postgres; print(Postgres().start().pid)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not alive(int(done.stdout))


def test_the_socket_leads_to_the_same_server(postgres: Postgres) -> None:
    with psycopg.connect(postgres.socket_url()) as connection:
        assert connection.info.port == postgres.port


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"), Postgres(settings={"no_such_setting": "1"}):
        pass


def test_pgbouncer_gives_each_transaction_any_of_its_few_sessions(postgres: Postgres) -> None:
    with (
        PgBouncer(postgres, settings={"default_pool_size": "1"}) as bouncer,
        psycopg.connect(bouncer.url(), autocommit=True) as first,
        psycopg.connect(bouncer.url(), autocommit=True) as second,
    ):
        assert bouncer.version >= (1, 18)
        sessions = [one.execute("select pg_backend_pid()").fetchone() for one in (first, second)]
    assert sessions[0] == sessions[1]


def test_faketime_moves_the_clock_of_a_child_only() -> None:
    child = [sys.executable, "-c", "import time; print(time.time() - time.monotonic())"]
    times = [
        float(subprocess.check_output(child, env={**os.environ, **extra}, text=True))
        for extra in ({}, faketime_env("+1h"))
    ]
    assert times[1] - times[0] == pytest.approx(3600, abs=5)


def test_what_cannot_be_had_is_sought_once_and_remembered_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    sought = []

    def fail() -> Path:
        sought.append("once")
        raise Unavailable("Unobtainium", "none is left")

    monkeypatch.setattr(servers, "missing", {})
    monkeypatch.setattr(servers, "_sought", {})
    monkeypatch.setitem(servers.finders, "unobtainium", fail)
    for _ in range(2):
        with pytest.raises(Unavailable, match="none is left"):
            need("unobtainium")
    assert servers.missing == {"Unobtainium": "none is left"}
    assert sought == ["once"]


def test_two_processes_do_not_fetch_at_once() -> None:
    script = "from tests.servers import need; print('asks', flush=True); need('postgres')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        with servers._one_at_a_time():
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(timeout=0.5)
        assert other.wait(timeout=60) == 0


def test_a_servers_port_is_not_one_that_clients_get() -> None:
    with socket.create_server((servers.HOST, 0)) as given:
        assert servers.free_port() < given.getsockname()[1]


def archive(folder: Path, **release: str) -> str:
    """Make an archive of packages that holds none; return its address."""
    suite = folder / "dists" / "stable"
    (suite / "main" / "binary-all").mkdir(parents=True)
    (suite / "main" / "binary-all" / "Packages").touch()
    said = {**release, "Suite": "stable", "Components": "main", "Architectures": "all"}
    (suite / "Release").write_text("".join(f"{name}: {value}\n" for name, value in said.items()))
    return f"file:{folder}"


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="only Debian and its kin have apt")
def test_packages_come_from_where_the_machine_gets_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    addresses = [
        archive(tmp_path / "tools", Origin="Tools", Label="Debian"),
        archive(tmp_path / "security", Origin="Debian", Label="Debian-Security"),
        archive(tmp_path / "mirror", Origin="Debian", Label="Debian"),
    ]
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    settings = {
        "Dir::Etc::SourceList": tmp_path / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": tmp_path / "lists",
        "Dir::Cache": tmp_path / "cache",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "all",
        "APT::Architectures": "all",
    }
    (tmp_path / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    (tmp_path / "sources.list").write_text("".join(f"deb [trusted=yes] {one} stable main\n" for one in addresses))
    assert debian_mirror().rstrip("/") == addresses[-1]
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] {addresses[0]} stable main\n")
    with pytest.raises(RuntimeError, match="no archive of Debian"):
        debian_mirror()


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Each machine has its own mirrors; the files that tools lock their choices in are theirs."""
    host = re.compile(r"https?://[^\s\"/]*(deb\.|pypi|npmjs|crates|maven|golang|pythonhosted)")
    root = RUN.parent
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0")
    files = [root / name for name in names if name and not name.endswith((".lock", "-lock.json"))]
    named = [
        f"{file.relative_to(root)}: {found[0]}"
        for file in files
        if file.is_file() and (found := host.search(file.read_text(errors="replace")))
    ]
    assert named == []
