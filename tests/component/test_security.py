"""Hostile peers and careless users: TLS that must not be believed, answers slipped in, secrets."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
from cryptography.hazmat.primitives import serialization

from gnsqsync import ConnectionOptions, LookupdHTTP, NsqdHTTP, Reader, Writer
from gnsqsync.errors import ConfigError, ConnectionLost, NotSent, NSQError, ProtocolError
from tests.component.conftest import Client
from tests.component.connection.test_opening import failure
from tests.component.http.test_clients import raw_server
from tests.support import scripted
from tests.support.interpreter import run_script
from tests.support.scripted import NEGOTIATED, RESPONSE, Command, ScriptedNsqd, automatic, frame
from tests.support.serving import Serving, SocketServer
from tests.support.worlds import World

SECRET = "s3cr3t"


# -- certificates ----------------------------------------------------------------------------------


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def self_signed() -> ssl.SSLContext:
    """An authority without authority, which serves with its own certificate."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with authority.private_key_pem.tempfile() as key, authority.cert_pem.tempfile() as cert:
        context.load_cert_chain(cert, key)
    return context


def _days(count: int) -> datetime.datetime:
    now = datetime.datetime.now(datetime.UTC)
    return now + datetime.timedelta(days=count)


# What is wrong with the server's certificate, by the authority that the client trusts.
BAD: dict[str, Callable[[trustme.CA], ssl.SSLContext]] = {
    "another host's": lambda ca: server_context(ca.issue_cert("nsqd.example", "127.0.0.2")),
    "expired": lambda ca: server_context(
        ca.issue_cert("127.0.0.1", not_before=_days(-9), not_after=_days(-1))
    ),
    "not valid yet": lambda ca: server_context(
        ca.issue_cert("127.0.0.1", not_before=_days(1), not_after=_days(9))
    ),
    "of another authority": lambda ca: server_context(trustme.CA().issue_cert("127.0.0.1")),
    "self-signed": lambda ca: self_signed(),
}
bad_certificates = pytest.mark.parametrize("wrong", BAD)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


@bad_certificates
def test_an_nsqd_with_a_bad_certificate_gets_nothing(
    client: Client, authority: trustme.CA, ca_file: Path, wrong: str
) -> None:
    with ScriptedNsqd([automatic(auth_required=True)], tls=BAD[wrong](authority)) as nsqd:
        writer = client.writer(nsqd, tls_ca_file=str(ca_file), auth_secret=SECRET)
        with pytest.raises(NotSent, match=r"certificate of .* does not verify"):
            writer.publish("t", "x", timeout=10)
        assert {command.name for command in nsqd.commands} == {"IDENTIFY"}


def https_server(context: ssl.SSLContext) -> SocketServer:
    server = SocketServer()
    # Refused handshakes are what the tests are about.
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    return server


@pytest.fixture
def serve() -> Iterator[Callable[[SocketServer], SocketServer]]:
    """Runs HTTP servers until the end of the test."""
    with contextlib.ExitStack() as running:

        def serve(server: SocketServer) -> SocketServer:
            running.enter_context(Serving(server))
            return server

        yield serve


Serve = Callable[[SocketServer], SocketServer]


@bad_certificates
def test_an_https_nsqlookupd_with_a_bad_certificate_is_asked_nothing(
    serve: Serve, authority: trustme.CA, ca_file: Path, wrong: str
) -> None:
    server = serve(https_server(BAD[wrong](authority)))
    lookupd = LookupdHTTP(
        f"https://{server.address}", tls_ca_file=str(ca_file), authorization=SECRET
    )
    with lookupd, pytest.raises(ConnectionLost, match=r"(?i)certificate|hostname|IP address"):
        lookupd.lookup("t")
    assert not server.requests


def test_a_change_of_the_authority_holds_from_the_next_connection_on(
    client: Client, world: World, authority: trustme.CA, ca_file: Path
) -> None:
    """How an old certificate is revoked: what it was issued by is trusted no longer."""
    with ScriptedNsqd(tls=server_context(authority.issue_cert("127.0.0.1"))) as nsqd:
        writer = client.writer(nsqd, tls_ca_file=str(ca_file))
        writer.publish("t", "x")
        trustme.CA().cert_pem.write_to_path(ca_file)
        nsqd.drop_connections()
        world.eventually(lambda: not writer.stats().connections)
        with pytest.raises(NotSent, match="does not verify"):
            writer.publish("t", "y", timeout=10)
        assert len(nsqd.received("PUB")) == 1


# -- downgrades ------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [{"tls_v1": False}, {"tls_v1": None}, {"tls_v1": "true"}, {}])
def test_without_tls_nothing_is_said(world: World, answer: dict[str, Any]) -> None:
    text = json.dumps({**{k: v for k, v in NEGOTIATED.items() if k != "tls_v1"}, **answer})

    def decline(connection: scripted.Connection, command: Command) -> None:
        connection.response(text.encode())

    with ScriptedNsqd([automatic(hooks={"IDENTIFY": decline})]) as nsqd:
        error = failure(world, nsqd, tls=True, auth_secret=SECRET)
        assert "tls_v1" in str(error)
        assert {command.name for command in nsqd.commands} == {"IDENTIFY"}


@pytest.mark.parametrize("upgrade", ["tls", "deflate", "snappy"])
def test_answers_slipped_in_ahead_of_a_layer_are_refused(
    world: World, authority: trustme.CA, ca_file: Path, upgrade: str
) -> None:
    """Else whoever sits in between could answer in the place of the nsqd that was verified."""
    key = "tls_v1" if upgrade == "tls" else upgrade
    inserted = frame(RESPONSE, b"OK") * 2

    def insert(connection: scripted.Connection, command: Command) -> None:
        answer = json.dumps({**NEGOTIATED, key: True, "auth_required": True}).encode()
        connection.send(frame(RESPONSE, answer) + inserted)
        if upgrade == "tls":
            connection.start_tls(server_context(authority.issue_cert("127.0.0.1")))
        scripted.close()(connection)

    options: dict[str, Any] = {upgrade: True, "auth_secret": SECRET}
    if upgrade == "tls":
        options["tls_ca_file"] = str(ca_file)
    with ScriptedNsqd([automatic(hooks={"IDENTIFY": insert})]) as nsqd:
        error = failure(world, nsqd, **options)
        assert not nsqd.received("AUTH")
    assert isinstance(error, ProtocolError)
    assert f"before {upgrade} was on" in str(error)


def test_a_redirect_does_not_lead_away_from_https(
    serve: Serve, authority: trustme.CA, ca_file: Path
) -> None:
    plain = serve(SocketServer())
    plain.answer({"topics": ["forged"]})
    secure = serve(https_server(server_context(authority.issue_cert("127.0.0.1"))))
    secure.answer(b"", 302)
    secure.headers["Location"] = f"http://{plain.address}/topics"
    with LookupdHTTP(f"https://{secure.address}", tls_ca_file=str(ca_file)) as lookupd:
        with pytest.raises(ProtocolError, match="away from https"):
            lookupd.topics()
    assert not plain.requests


# -- answers that do not end -----------------------------------------------------------------------


def test_headers_that_drip_for_ever() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        pause = threading.Event()
        while True:
            connection.sendall(b"X: y\r\n")
            pause.wait(0.02)

    with raw_server(drip) as address, LookupdHTTP(address, timeout=0.1) as lookupd:
        with pytest.raises(ConnectionLost, match=r"no answer within|more than 100 headers"):
            lookupd.topics()


def test_a_status_line_that_drips_for_ever() -> None:
    def drip(connection: socket.socket) -> None:
        pause = threading.Event()
        connection.sendall(b"HTTP/1.1 200 ")
        while True:
            connection.sendall(b"O")
            pause.wait(0.02)

    with raw_server(drip) as address, NsqdHTTP(address, timeout=0.1) as nsqd:
        with pytest.raises(ConnectionLost, match="no answer within"):
            nsqd.ping()


def test_the_body_of_a_redirect_is_not_read() -> None:
    sent = 0

    def redirect(connection: socket.socket) -> None:
        nonlocal sent
        # To where nobody listens.
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n")
        while sent < 200_000_000:
            connection.sendall(bytes(65536))
            sent += 65536

    with raw_server(redirect) as address, LookupdHTTP(address, timeout=5) as lookupd:
        with pytest.raises(ConnectionLost, match="refused"):
            lookupd.topics()
    # What the kernel's buffers took.
    assert sent < 100_000_000


def test_redirects_in_a_circle_end(serve: Serve) -> None:
    server = serve(SocketServer())
    server.answer(b"", 302)
    server.headers["Location"] = "/topics"
    with LookupdHTTP(server.address) as lookupd:
        with pytest.raises(ConnectionLost, match="TooManyRedirects"):
            lookupd.topics()
    assert len(server.requests) == 6


def test_a_compressed_answer_is_neither_asked_for_nor_inflated(serve: Serve) -> None:
    server = serve(SocketServer())
    server.answer(gzip.compress(json.dumps({"topics": ["a"]}).encode()))
    server.headers["Content-Encoding"] = "gzip"
    with LookupdHTTP(server.address) as lookupd:
        with pytest.raises(ProtocolError, match="not asked for"):
            lookupd.topics()
    assert server.requests[0]["headers"]["Accept-Encoding"] == "identity"


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.http.transport.MAX_ANSWER", 1_000_000)

    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(bytes(65536))

    with raw_server(flood) as address, LookupdHTTP(address) as lookupd:
        with pytest.raises(ProtocolError, match="larger than 1000000 bytes"):
            lookupd.topics()


def test_the_text_of_a_server_is_one_short_line_of_an_error(serve: Serve) -> None:
    server = serve(SocketServer())
    with LookupdHTTP(server.address) as lookupd:
        for message in ("\n2026-01-01 CRITICAL root: forged", "x" * 100_000):
            server.answer({"message": message}, 400)
            with pytest.raises(NSQError) as caught:
                lookupd.topics()
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 1000


def test_the_text_of_an_nsqd_is_one_short_line_of_an_error(client: Client) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC \n2026-01-01 CRITICAL root: forged " + "x" * 100_000)
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"PUB": refuse})]) as nsqd:
        with pytest.raises(NSQError) as caught:
            client.writer(nsqd).publish("t", "x", timeout=10)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


# -- secrets ---------------------------------------------------------------------------------------


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


WRONG_ADDRESSES = [
    f"me:{SECRET}@host:4150",
    f"http://me:{SECRET}@host:bad",
    f"http://me:{SECRET}/x@host",
    f"http://me:{SECRET}@[::1",
    f"ftp://me:{SECRET}@host",
    f"http://host:0/?token={SECRET}",
    [f"http://me:{SECRET}@host", 7],
    [(f"http://me:{SECRET}@host", 4161)],
]


@pytest.mark.parametrize("wrong", WRONG_ADDRESSES, ids=str)
def test_an_address_that_is_refused_shows_no_password(wrong: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: Reader("t", "c", print, lookupd_http_addresses=wrong),
        lambda: Writer(lookupd_http_addresses=wrong),
    ]
    if isinstance(wrong, str):
        makers += [lambda: Writer(wrong), lambda: LookupdHTTP(wrong), lambda: NsqdHTTP(wrong)]
    for make in makers:
        try:
            make()
        except ConfigError as error:
            assert SECRET not in printed(error)
    with pytest.raises(ConfigError):
        makers[0]()


@pytest.mark.parametrize(
    "options",
    [
        {"auth_secret": [SECRET]},
        {"auth_secret": SECRET, "auth_secrets": SECRET},
        {"auth_secret": SECRET, "tls_key_file": "/no/such/file"},
        {"auth_secret": SECRET, "heartbeat_interval": "x"},
    ],
    ids=lambda options: "+".join(options),
)
def test_a_wrong_option_shows_no_other(options: dict[str, Any]) -> None:
    for make in (
        lambda: ConnectionOptions(**options),
        lambda: Writer("h", **options),
        lambda: Reader("t", "c", print, nsqd_tcp_addresses="h", **options),
    ):
        with pytest.raises((ConfigError, TypeError)) as caught:
            make()
        assert SECRET not in printed(caught.value)


def test_a_secret_function_that_fails_shows_nothing_of_us(client: Client) -> None:
    def ask() -> bytes:
        return [SECRET]  # type: ignore[return-value]

    with ScriptedNsqd([automatic(auth_required=True)]) as nsqd:
        with pytest.raises(NSQError) as caught:
            client.writer(nsqd, auth_secret=ask).publish("t", "x", timeout=5)
    assert SECRET not in printed(caught.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(
    authority: trustme.CA, tmp_path: Path
) -> None:
    leaf = authority.issue_cert("me@example.org")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    leaf.cert_chain_pems[0].write_to_path(cert)
    loaded = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(SECRET.encode()),
        )
    )
    options = ConnectionOptions(tls_cert_file=str(cert), tls_key_file=str(key))
    with pytest.raises(ConfigError, match="encrypted") as caught:
        options.ssl_context()
    assert "ssl.SSLContext" in str(caught.value)


def test_neither_logs_nor_errors_of_a_session_show_the_headers_it_sends(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """urllib3's own log included: a token in a header is safe at DEBUG."""
    caplog.set_level(logging.DEBUG)
    server = serve(SocketServer())
    server.answer({"message": "FORBIDDEN"}, 403)
    session = requests.Session()
    session.headers["X-Token"] = SECRET
    shown = []
    for options in (
        {"session": session},
        {"authorization": SECRET},
        {"address": f"http://me:{SECRET}@{server.address}"},
    ):
        address: Any = options.pop("address", server.address)
        given: Any = options
        with LookupdHTTP(address, **given) as lookupd:
            with pytest.raises(NSQError) as caught:
                lookupd.topics()
            shown += [printed(caught.value), repr(lookupd), lookupd.url]
    session.close()
    assert len(server.requests) == 3
    assert SECRET not in "".join(shown) + caplog.text


def test_settings_of_frameworks_hide_what_may_be_secret() -> None:
    from flask import Flask

    from gnsqsync.django.config import Alias
    from gnsqsync.flask.config import read_settings

    url = f"http://me:{SECRET}@lookupd:4161"
    alias = Alias((), (url,), (url,), {"auth_secret": SECRET}, None, (), "default", False)
    app = Flask("shop")
    app.config.update(NSQ_LOOKUPD_ADDRESSES=[url], NSQ_OPTIONS={"auth_secret": SECRET})
    assert SECRET not in repr(alias) + repr(read_settings(app))
    for wrong in (
        {"NSQ_OPTIONS": [("auth_secret", SECRET)]},
        {"NSQ_LOOKUPD_ADDRESSES": [url, 7]},
        {"NSQ_LOOKUPD_ADDRESSES": {url: 1}},
    ):
        app.config.update(wrong)
        with pytest.raises(ConfigError) as caught:
            read_settings(app)
        assert SECRET not in printed(caught.value)


def test_django_checks_show_no_setting_that_may_be_secret() -> None:
    """In an interpreter of its own: Django's settings are made once for a process."""
    out = run_script(f"""
        import django
        from django.conf import settings
        settings.configure(GNSQSYNC={{"default": {{"LOOKUPD": ["http://me:{SECRET}@h"]}}}})
        from gnsqsync.django import config
        url = "http://me:{SECRET}@h"
        for wrong in (
            [url],
            {{"default": [url]}},
            {{"default": {{"LOOKUPD": {{url: 1}}}}}},
            {{"default": {{"LOOKUPD": [url, 7]}}}},
            {{"default": {{"LOOKUPD": ["http://me:{SECRET}@h:bad"]}}}},
            {{"default": {{"NSQD": ["h"], "OPTIONS": [("auth_secret", "{SECRET}")]}}}},
            {{"default": {{"NSQD": ["h"], "OPTIONS": {{"auth_secret": ["{SECRET}"]}}}}}},
        ):
            settings.GNSQSYNC = wrong
            problems = [*config.problems()]
            assert problems, wrong
            assert "{SECRET}" not in repr(problems) + "".join(map(str, problems)), problems
        print("good")
    """)
    assert out == "good"


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_shows_no_secret() -> None:
    """With everything that --verbose and the help have to say, and in an error's text."""
    url = f"http://me:{SECRET}@127.0.0.1:1"
    for arguments in (
        ["pub", "t", "--help"],
        ["pub", "t", "--verbose", "-t", "127.0.0.1:1", "--timeout", "0.2"],
        ["tail", "t", "--verbose", "-l", url, "--no-such-option"],
        ["tail", "t", "--verbose", "-l", f"ftp://me:{SECRET}@127.0.0.1"],
        ["tail", "t", "-n", "x", "-l", url],
        ["stat", "-l", url, "--once", "--verbose"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gnsqsync.cli", *arguments],
            input="x\n",
            env={**os.environ, "GNSQSYNC_AUTH_SECRET": SECRET, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr, arguments
