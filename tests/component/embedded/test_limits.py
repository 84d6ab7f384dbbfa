"""What hostile clients have of the embedded servers: an answer or an end, and bounded memory."""

from __future__ import annotations

import io
import re
import resource
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme

from gnsqsync import NsqdHTTP
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import is_loopback
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.embedded.listeners import Gate, most_connections
from gnsqsync.embedded.options import LookupdOptions, NsqdOptions
from gnsqsync.wire import commands
from tests.support.interpreter import run_script
from tests.support.servers import ROOT
from tests.support.waiting import eventually

TIMEOUT = 30.0
MEBI = 1024 * 1024


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT)


def rest_of(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass  # it closed while we were still sending
    return b"".join(parts)


def exchange(address: str, data: bytes) -> bytes:
    with connect(address) as sock:
        try:
            sock.sendall(data)
        except OSError:
            pass  # it closed meanwhile
        return rest_of(sock)


def peak_memory(pid: int) -> int:
    """The most memory that the process ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as server:
        yield server


def test_loopback_unless_told() -> None:
    nsqd, nsqlookupd = NsqdOptions(), LookupdOptions()
    addresses = [nsqd.tcp_address, nsqd.http_address, nsqd.https_address]
    for address in [*addresses, nsqlookupd.tcp_address, nsqlookupd.http_address]:
        assert address.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil"])
def test_a_name_is_not_loopback_for_how_it_begins(name: str) -> None:
    assert not is_loopback(f"{name}:4150")


# Sent to a port, and how what comes back begins; None where there is nothing to say.
TCP: dict[str, tuple[bytes, bytes | None]] = {
    "endless line": (b"  V2" + b"A" * MEBI, None),
    "huge IDENTIFY": (b"  V2IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body too big"),
    "negative body": (b"  V2IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size"),
    "huge AUTH": (b"  V2AUTH\n\x7f\xff\xff\xff", b"E_BAD_BODY AUTH body too big"),
    "huge PUB": (b"  V2PUB t\n\x7f\xff\xff\xff", b"E_BAD_MESSAGE PUB message too big"),
    "huge MPUB": (b"  V2MPUB t\n\x7f\xff\xff\xff", b"E_BAD_BODY MPUB body too big"),
    "MPUB of too many": (
        b"  V2MPUB t\n" + struct.pack(">ii", 100, 2**31 - 1),
        b"E_BAD_BODY MPUB invalid message count",
    ),
    "MPUB larger than it says": (
        b"  V2MPUB t\n"
        + struct.pack(">ii", 100, 100)
        + (struct.pack(">i", MEBI) + bytes(MEBI)) * 7,
        b"E_BAD_BODY MPUB body too big",
    ),
    "deep JSON": (
        b"  V2IDENTIFY\n" + struct.pack(">i", MEBI) + b"[" * MEBI,
        b"E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", b"E_BAD_PROTOCOL"),
}


@pytest.mark.parametrize("name", TCP)
def test_nsqd_answers_or_closes(nsqd: Nsqd, name: str) -> None:
    data, text = TCP[name]
    answer = exchange(nsqd.tcp_address, data)
    assert answer[8:].startswith(text) if text else answer == b""
    with NsqdHTTP(nsqd.http_address) as http:
        assert http.ping() == "OK"


V1: dict[str, tuple[bytes, bytes | None]] = {
    "endless line": (b"  V1" + b"A" * MEBI, None),
    "huge IDENTIFY": (b"  V1IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY"),
    "negative IDENTIFY": (b"  V1IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY"),
    "deep JSON": (
        b"  V1IDENTIFY\n" + struct.pack(">i", 500_000) + b"[" * 500_000,
        b"E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", b"E_BAD_PROTOCOL"),
}


@pytest.mark.parametrize("name", V1)
def test_nsqlookupd_answers_or_closes(nsqlookupd: Nsqlookupd, name: str) -> None:
    data, text = V1[name]
    answer = exchange(nsqlookupd.tcp_address, data)
    assert answer[4:].startswith(text) if text else answer == b""
    assert b"200 OK" in exchange(nsqlookupd.http_address, b"GET /ping HTTP/1.0\r\n\r\n")


HTTP: dict[str, tuple[bytes, bytes]] = {
    "endless request line": (b"GET /" + b"a" * 2 * MEBI, b"HTTP/1.1 431"),
    "endless header": (b"GET /ping HTTP/1.1\r\nX: " + b"a" * 2 * MEBI, b"HTTP/1.1 431"),
    "endless headers": (b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 200_000, b"HTTP/1.1 431"),
    "negative length": (
        b"POST /topic/create?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 400",
    ),
}


@pytest.mark.parametrize("name", HTTP)
def test_http_answers_or_closes(nsqd: Nsqd, nsqlookupd: Nsqlookupd, name: str) -> None:
    data, text = HTTP[name]
    for address in (nsqd.http_address, nsqlookupd.http_address):
        # A reset may overtake the answer, since more is sent than is read.
        assert exchange(address, data)[: len(text)] in (text, b"")
        assert b"200 OK" in exchange(address, b"GET /ping HTTP/1.0\r\n\r\n")


def test_neither_prints_a_traceback_for_it(nsqd: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    """All of the above again, for this test by itself."""
    for server, cases in ((nsqd, TCP), (nsqlookupd, V1)):
        for data, _ in cases.values():
            exchange(server.tcp_address, data)
        for data, _ in HTTP.values():
            exchange(server.http_address, data)
        assert "Traceback" not in server.log


def deflated_identify(sock: socket.socket) -> None:
    sock.sendall(b"  V2" + commands.identify({"feature_negotiation": True, "deflate": True}))
    (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    assert b'"deflate":true' in sock.recv(size, socket.MSG_WAITALL)


def test_a_bomb_in_deflate_takes_no_memory() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    # Each part begins anew and ends at a byte, so it can follow itself.
    part = compressor.compress(bytes(MEBI)) + compressor.flush(zlib.Z_FULL_FLUSH)
    bomb = part * 256 + compressor.flush()
    assert len(bomb) < MEBI
    with Nsqd() as nsqd:
        with connect(nsqd.tcp_address) as sock:
            deflated_identify(sock)
            before = peak_memory(nsqd.pid)
            try:
                sock.sendall(bomb)
                rest_of(sock)
            except OSError:
                pass  # no line has so many zeros
        with NsqdHTTP(nsqd.http_address) as http:
            assert http.ping() == "OK"
        assert peak_memory(nsqd.pid) - before < 32 * MEBI


def test_commands_ahead_of_tls_are_not_executed(tmp_path: Path) -> None:
    """Whoever sits in between cannot put a publish before the client's own handshake."""
    leaf = trustme.CA().issue_cert("127.0.0.1")
    pem = tmp_path / "server.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(pem)
    with Nsqd(tls_cert=str(pem), tls_key=str(pem)) as nsqd:
        identify = commands.identify({"feature_negotiation": True, "tls_v1": True})
        with connect(nsqd.tcp_address) as sock:
            sock.sendall(b"  V2" + identify + commands.pub("injected", b"x"))
            sock.shutdown(socket.SHUT_WR)
            assert b'"tls_v1":true' in rest_of(sock)
        with connect(nsqd.tcp_address) as sock:
            sock.sendall(b"  V2" + identify)
            sock.recv(65536)
            sock.sendall(commands.pub("injected", b"x"))
            assert b"E_IDENTIFY_FAILED" in rest_of(sock)
        with NsqdHTTP(nsqd.http_address) as http:
            assert http.stats().topics == ()


def test_plain_bytes_at_the_https_port(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    pem, ca_file = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    leaf.private_key_and_cert_chain_pem.write_to_path(pem)
    with Nsqd(tls_cert=str(pem), tls_key=str(pem)) as nsqd:
        https = nsqd.https_address
        exchange(https, b"GET /ping HTTP/1.0\r\n\r\n")
        exchange(https, b"\x16\x03\x01\x40\x00" + bytes(20_000))
        # Silence ends, too.
        assert exchange(https, b"") == b""
        with NsqdHTTP(f"https://{https}", tls_ca_file=str(ca_file), timeout=TIMEOUT) as http:
            assert http.ping() == "OK"
        assert "Traceback" not in nsqd.log


@contextmanager
def few_descriptors(program: str, limit: int) -> Iterator[dict[str, str]]:
    """A server that may have so many descriptors; where it listens, by the label of the line."""
    source = (
        "import resource, sys; from gnsqsync.embedded.__main__ import main;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", source, program]
    command += ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    addresses: dict[str, str] = {}
    try:
        while len(addresses) < 2:
            line = process.stderr.readline()
            assert line, "it ended"
            if found := re.search(r"(TCP|HTTP): listening on (\S+)", line):
                addresses[found[1]] = found[2]
        yield addresses
        assert process.poll() is None
    finally:
        process.terminate()
        process.stderr.read()
        process.wait(TIMEOUT)
        process.stderr.close()


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_more_connections_than_descriptors(program: str) -> None:
    limit = 100
    magic = {"nsqd": b"  V2NOP\n", "nsqlookupd": b"  V1"}[program]
    with few_descriptors(program, limit) as addresses, ExitStack() as stack:
        held = []
        for number in range(60):
            sock = stack.enter_context(connect(addresses["TCP" if number % 2 else "HTTP"]))
            held.append(sock)
        refused = len(held) - (limit - 64)
        eventually(lambda: sum(map(is_closed, held)) >= refused)
        assert sum(map(is_closed, held)) == refused
        for sock in held:
            sock.close()
        # There is room again, as soon as it has noticed.
        ping = b"GET /ping HTTP/1.0\r\n\r\n"
        eventually(lambda: exchange(addresses["HTTP"], ping).endswith(b"OK"))
        with connect(addresses["TCP"]) as sock:
            sock.sendall(magic)
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)


def test_a_gate_counts_what_is_open_and_tells_once() -> None:
    told = io.StringIO()
    gate = Gate(Log("", "info", told), 1)
    served: list[str] = []

    def handle(sock: str, address: object) -> None:
        served.append(sock)
        for name in ("b", "c"):
            gate.serve(refused, name, None)

    refused: Callable[[str, object], None] = handle
    for _ in range(2):
        gate.serve(handle, "a", None)
    assert served == ["a", "a"]
    # Once while it is full: two refusals at a time.
    assert told.getvalue().count("WARNING: 1 connections are open") == 2


def test_the_limit_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in (
        (1024, 960),
        (50, 16),
        (1_000_000, 10_000),
        (resource.RLIM_INFINITY, 10_000),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert most_connections() == most


def test_a_client_that_sends_no_magic_is_closed() -> None:
    """In a process of its own, since gevent runs there."""
    out = run_script("""
        import gevent
        import io
        from gevent import socket
        from gnsqsync.embedded import connection
        from gnsqsync.daemon.golog import Log
        from gnsqsync.embedded.options import NsqdOptions
        from gnsqsync.embedded.server import NsqdServer
        connection._MAGIC_TIMEOUT = 0.2
        options = NsqdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
        server = NsqdServer(options, Log("", "error", io.StringIO()))
        server.start()
        with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=20) as sock:
            sock.sendall(b"  V")
            print(sock.recv(100))
        server.stop()
        gevent.sleep(0)
    """)
    assert out == "b''"
