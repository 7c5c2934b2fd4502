"""TLS to MariaDB with certificates of our own making: the authority is checked, and a client may show its own."""

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast.errors import DatabaseUnavailable
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store
from tests.servers import HOST, MariaDB, Unavailable, run

CIPHER = "select variable_value from information_schema.session_status where variable_name = 'Ssl_cipher'"


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl("req", "-x509", *new_key(self._key), "-days", "2", "-subj", f"/CN={name}", "-out", self.certificate)

    def issue(self, name: str, *more: str) -> tuple[Path, Path]:
        """Sign a certificate for a new key; return both files."""
        request, certificate, key = (self.folder / f"{name}.{end}" for end in ("csr", "pem", "key"))
        openssl("req", *new_key(key), "-subj", f"/CN={name}", *more, "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-copy_extensions", "copy", "-out", certificate)
        # Made by us, read by the server's own user.
        key.chmod(0o644)
        return certificate, key


def new_key(file: Path) -> tuple[object, ...]:
    return ("-newkey", "rsa:2048", "-nodes", "-keyout", file)


def openssl(*arguments: object) -> None:
    if not shutil.which("openssl"):
        raise Unavailable("openssl", "it is not installed")
    run(["openssl", *map(str, arguments)])


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    """A server whose certificate names 127.0.0.1, and a user who must show a certificate."""
    server = MariaDB()
    authority = Authority(server.folder, "authority")
    certificate, key = authority.issue("server", "-addext", f"subjectAltName=IP:{HOST}")
    authority.issue("carol")
    Authority(server.folder, "stranger").issue("impostor")
    server.settings |= {"ssl-ca": str(authority.certificate), "ssl-cert": str(certificate), "ssl-key": str(key)}
    with server:
        server.execute("create user carol@'%' require x509")
        server.execute("create user dave@'%' require ssl")
        yield server


@flow
def answer(sql: str) -> Steps[object]:
    [[value]] = yield from run_text("answer", sql)
    return value


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(server: MariaDB, colour: str, user: str = "root", host: str = HOST, **settings: str) -> object:
    """Ask for the cipher on a connection with these settings, which name files of the server's folder."""
    paths = {name: str(server.folder / file) for name, file in settings.items() if Path(file).suffix}
    store = Store(f"mysql://{user}@{host}:{server.port}/information_schema?{urlencode(settings | paths)}")

    async def asked() -> object:
        try:
            return await store.arun_once(answer(CIPHER))
        finally:
            await store.aclose()

    try:
        return store.run_once(answer(CIPHER)) if colour == "sync" else asyncio.run(asked())
    finally:
        store.close()


def test_a_server_of_the_given_authority_is_believed(server: MariaDB, colour: str) -> None:
    assert "TLS" in str(ask(server, colour, ssl_ca="authority.pem"))


def test_a_connection_is_closed_though_the_server_says_no_goodbye(server: MariaDB) -> None:
    store = Store(f"mysql://root@{HOST}:{server.port}/information_schema?ssl_ca={server.folder / 'authority.pem'}")
    assert server.pid is not None

    async def ask_and_close(pid: int) -> None:
        await store.arun(answer(CIPHER))
        os.kill(pid, signal.SIGSTOP)
        await store.aclose()

    try:
        asyncio.run(ask_and_close(server.pid))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    gc.collect()  # A socket that was left open makes itself heard, and this test fail.


def test_a_server_of_another_authority_is_refused_and_the_error_says_why(server: MariaDB, colour: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        ask(server, colour, ssl_ca="stranger.pem")
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        ask(server, colour, ssl="true")


def test_a_server_under_another_name_is_refused_unless_names_do_not_count(server: MariaDB, colour: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="localhost"):
        ask(server, colour, host="localhost", ssl_ca="authority.pem")
    assert ask(server, colour, host="localhost", ssl_ca="authority.pem", ssl_verify="ca")
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        ask(server, colour, host="localhost", ssl_ca="stranger.pem", ssl_verify="ca")


def test_a_client_shows_its_certificate(server: MariaDB, colour: str) -> None:
    settings = {"ssl_ca": "authority.pem", "ssl_cert": "carol.pem", "ssl_key": "carol.key"}
    assert ask(server, colour, user="carol", **settings)
    with pytest.raises(DatabaseUnavailable, match="denied"):
        ask(server, colour, user="carol", ssl_ca="authority.pem")


def test_a_client_with_a_strangers_certificate_is_refused(server: MariaDB, colour: str) -> None:
    with pytest.raises(DatabaseUnavailable):
        ask(server, colour, user="carol", ssl_ca="authority.pem", ssl_cert="impostor.pem", ssl_key="impostor.key")


def test_tls_is_spoken_only_when_it_is_asked_for(server: MariaDB, colour: str) -> None:
    assert ask(server, colour) == ask(server, colour, ssl="false") == ""
    with pytest.raises(DatabaseUnavailable, match="denied"):
        ask(server, colour, user="dave")
    assert ask(server, colour, user="dave", ssl_verify="none")
