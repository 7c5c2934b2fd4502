"""The webhook sink against a real HTTP server: the suite, both modes, signatures, pauses and where it may connect."""

import asyncio
import base64
import hashlib
import hmac
import logging
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Mode, Outcome, Refused, SinkDown, Webhook, addresses
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests.gate import Gate
from tests.sinks.web import Request, Web

KEY = b"k" * 32
SECRET = "whsec_" + base64.b64encode(KEY).decode()
TOKEN = "t0ken-in-the-path"


class Endpoint(Receiver):
    """An endpoint that says 413 to what is too large."""

    secrets = (SECRET, TOKEN, "p4ss")

    def __init__(self, web: Web, gate: Gate, mode: Mode = "binary") -> None:
        self.web, self.gate, self.mode = web, gate, mode
        web.answer = lambda request: (413 if len(request.body) > 100_000 else 200, {})

    def sink(self, **settings: Any) -> Webhook:
        usual = {"secret": SECRET, "mode": self.mode, "allow_private": True, "timeout": 5.0}
        return Webhook(f"http://user:p4ss@127.0.0.1:{self.gate.port}/{TOKEN}", **usual | settings)

    async def received(self) -> list[CloudEvent]:
        return [self.event(request) for request in self.web.requests]

    def event(self, request: Request) -> CloudEvent:
        if self.mode == "structured":
            assert request.headers["content-type"] == "application/cloudevents+json"
            return from_structured(request.body)
        return from_binary({name: unquote(value) for name, value in request.headers.items()}, request.body)

    def bad(self) -> Message:
        return message("bad", "x" * 200_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
def gate(web: Web) -> Iterator[Gate]:
    with Gate(web.port) as gate:
        yield gate


@pytest.fixture
def receiver(web: Web, gate: Gate) -> Endpoint:
    return Endpoint(web, gate)


def test_an_event_arrives_in_structured_mode_too(web: Web, gate: Gate) -> None:
    sink_suite.test_an_event_arrives_as_it_was(Endpoint(web, gate, "structured"))


@pytest.fixture
def endpoint(web: Web, gate: Gate) -> Endpoint:
    return Endpoint(web, gate)


def outcomes_of(sink: Webhook, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def signature(key: bytes, request: Request) -> str:
    text = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


def test_a_request_is_signed_with_every_secret(endpoint: Endpoint) -> None:
    one = message()
    before = int(time.time())
    outcomes_of(endpoint.sink(secret=[SECRET, b"n" * 24]), one)
    [request] = endpoint.web.requests
    assert request.headers["webhook-id"] == one.event.id
    assert before <= int(request.headers["webhook-timestamp"]) <= time.time()
    signatures = request.headers["webhook-signature"].split(" ")
    assert signatures == [signature(KEY, request), signature(b"n" * 24, request)]


@pytest.mark.parametrize("concurrency", [1, 10])
def test_no_log_has_the_path_of_its_url_and_requests_of_others_are_logged_as_ever(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture, concurrency: int
) -> None:
    caplog.set_level(logging.DEBUG)

    async def scene() -> None:
        sink = endpoint.sink(concurrency=concurrency)
        assert [type(one) for one in await sink.send([message(), message()])] == [Delivered, Delivered]
        await sink.close()
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - no TLS here
            await client.post(f"http://127.0.0.1:{endpoint.web.port}/of-others", content=b"{}")

    asyncio.run(scene())
    assert TOKEN not in caplog.text
    assert "/of-others" in caplog.text


def test_the_signature_is_the_one_of_the_specification() -> None:
    """The example of the specification's own libraries."""
    from holdfast.sinks.signatures import keys_of, signed

    keys = keys_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def answered(endpoint: Endpoint, status: int, **headers: str) -> Outcome:
    endpoint.web.answer = lambda request: (status, {name.replace("_", "-"): value for name, value in headers.items()})
    [outcome] = outcomes_of(endpoint.sink(), message())
    return outcome


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
def test_a_message_that_is_at_fault_is_refused(endpoint: Endpoint, status: int) -> None:
    assert answered(endpoint, status) == Refused(f"HTTP {status} Said", str(status))


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 500, 503])
def test_what_somebody_may_put_right_is_tried_again(endpoint: Endpoint, status: int) -> None:
    assert answered(endpoint, status) == Failed(f"HTTP {status} Said")


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_does_not_know_whether_it_arrived(endpoint: Endpoint, status: int) -> None:
    assert answered(endpoint, status) == Failed(f"HTTP {status} Said", unknown=True)


def test_a_redirect_is_not_followed(endpoint: Endpoint) -> None:
    outcome = answered(endpoint, 302, location=f"http://127.0.0.1:{endpoint.web.port}/inside")
    assert isinstance(outcome, Failed)
    assert "redirects are not followed" in outcome.reason
    assert endpoint.web.requests == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_asks_for_a_pause_is_down_for_that_long(endpoint: Endpoint, status: int) -> None:
    with pytest.raises(SinkDown) as caught:
        answered(endpoint, status, retry_after="7")
    assert caught.value.retry_after == 7.0


def test_a_pause_may_be_a_date_by_the_receiver_s_clock(endpoint: Endpoint) -> None:
    there = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)
    pause = format_datetime(there + timedelta(seconds=90), usegmt=True)
    with pytest.raises(SinkDown) as caught:
        answered(endpoint, 503, retry_after=pause, date=format_datetime(there, usegmt=True))
    assert caught.value.retry_after == 90.0


@pytest.mark.parametrize("said, heard", [("120", 120.0), ("-5", None), ("soon", None), ("9" * 12, 86_400.0)])
def test_an_unreadable_pause_is_none(endpoint: Endpoint, said: str, heard: float | None) -> None:
    assert answered(endpoint, 500, retry_after=said) == Failed("HTTP 500 Said", heard)


def test_some_that_are_asked_to_wait_are_failures_with_that_pause(endpoint: Endpoint) -> None:
    slow = message("slow")
    endpoint.web.answer = lambda request: (
        (429, {"retry-after": "3"}) if request.headers["ce-id"] == slow.event.id else (200, {})
    )
    fine, waits = outcomes_of(endpoint.sink(), message("a"), slow)
    assert isinstance(fine, Delivered)
    assert waits == Failed("HTTP 429 Said", retry_after=3.0)


def test_a_receiver_that_does_not_answer_is_an_unknown_outcome(endpoint: Endpoint) -> None:
    endpoint.gate.blackhole()
    [outcome] = outcomes_of(endpoint.sink(timeout=0.2), message())
    endpoint.gate.heal()
    assert isinstance(outcome, Failed)
    assert outcome.unknown


def test_a_publisher_s_headers_come_along_but_change_nothing_that_matters(endpoint: Endpoint) -> None:
    forged = {"Host": "evil", "webhook-id": "x", "ce-id": "x", "Authorization": "x", "Content-Length": "0", "a b": "x"}
    one = Message(message().event, None, {"tenant": "zoë\r\nevil: 1", **forged})
    outcomes_of(endpoint.sink(headers={"x-api-key": "fixed"}), one)
    [request] = endpoint.web.requests
    assert request.headers["tenant"] == "zo%C3%AB%0D%0Aevil: 1"
    assert request.headers["x-api-key"] == "fixed"
    assert request.headers["ce-id"] == request.headers["webhook-id"] == one.event.id
    assert request.headers["host"] == f"127.0.0.1:{endpoint.gate.port}"
    assert "evil" not in request.headers


def test_a_name_that_leads_inside_is_refused_when_it_connects(web: Web) -> None:
    with pytest.raises(SinkDown, match="private addresses only"):
        outcomes_of(Webhook(f"http://localhost:{web.port}/"), message())
    assert web.requests == []


PRIVATE = """
127.0.0.1 10.1.2.3 169.254.169.254 192.168.0.1 100.64.0.1 0.0.0.0 224.0.0.1
[::1] [fe80::1] [fd00::1] [::ffff:10.0.0.1] [64:ff9b::a00:1] [2002:a00:1::]
"""


@pytest.mark.parametrize("host", PRIVATE.split())
def test_private_addresses_are_refused_when_the_sink_is_made(host: str) -> None:
    with pytest.raises(ConfigError, match="private address"):
        Webhook(f"https://{host}/")


@pytest.mark.parametrize("host", ["1.1.1.1", "[2606:4700::1]", "[64:ff9b::101:101]"])
def test_public_addresses_are_not(host: str) -> None:
    Webhook(f"https://{host}/")


def test_it_connects_to_the_address_that_was_looked_at_under_the_name_of_the_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name leads nowhere that a resolver knows: only the address that was looked at can have been used."""

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "hooks.example.org"
        return ["10.0.0.1", "127.0.0.1"]

    monkeypatch.setattr(addresses, "addresses_of", resolve)
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    server, trust = certificate("hooks.example.org", tmp_path)
    with Web(server) as web:
        sink = Webhook(f"https://hooks.example.org:{web.port}/x", options={"verify": trust})
        assert [type(one) for one in outcomes_of(sink, message())] == [Delivered]
        [request] = web.requests
        assert request.headers["host"] == f"hooks.example.org:{web.port}"


def certificate(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a certificate, and give a context for a server that has it and for a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / "server.pem"
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password) + made.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://example.org/"},
        {"url": "https://"},
        {"url": "https://example.org:x/"},
        {"secret": "whsec_short"},
        {"secret": "not base64 at all"},
        {"secret": 7},
        {"concurrency": 0},
    ],
)
def test_settings_are_checked_at_once_and_secrets_are_not_shown(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Webhook(**{"url": "https://example.org/"} | settings)
    assert "short" not in str(caught.value)
    assert "at all" not in str(caught.value)
