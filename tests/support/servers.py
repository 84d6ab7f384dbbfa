"""Real and embedded servers as child processes on free ports, and the pytest fixtures for them.

Knows the command lines, and the log lines that name the ports. Does not know the protocol. The two
kinds differ only in the first words of the command.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme

pytest.register_assert_rewrite("tests.support.rawclient")

from tests.support import realnsq  # noqa: E402
from tests.support.forks import Fork, Forks  # noqa: E402
from tests.support.needs import missing  # noqa: E402
from tests.support.ports import HeldPorts  # noqa: E402
from tests.support.rawclient import Client, LookupClient  # noqa: E402
from tests.support.waiting import LIMIT, Describe, eventually  # noqa: E402

Address = tuple[str, int]
T = TypeVar("T")

KINDS = ("embedded", "real")
ROOT = Path(__file__).parents[2]

_LISTENING = re.compile(r"^.* (TCP|HTTP|HTTPS): listening on (\S+):(\d+)$", re.MULTILINE)
_names = itertools.count(1)

# Command of an embedded nsqd or nsqlookupd, and the modules of both: half the time of a start goes
# into their imports, and a run starts hundreds.
_EMBEDDED = [sys.executable, "-m", "gnsqsync.embedded"]
_IMPORTED = (
    "gnsqsync.daemon.flags",
    "gnsqsync.daemon.parent",
    "gnsqsync.embedded.lookupd_server",
    "gnsqsync.embedded.options",
    "gnsqsync.embedded.server",
    "gnsqsync.process.output",
    "gnsqsync.process.signals",
)
_forks: list[Forks] = []
# Guards ``_forks``: servers start in threads beside each other.
_forking = threading.Lock()


class Cancelled(Exception):
    """The test session ended while a row waited."""


def unique(prefix: str = "t") -> str:
    """Return a topic or channel name that no other test of this process uses."""
    return f"{prefix}_{next(_names)}"


def _is_at_rest(process: subprocess.Popen[bytes] | Fork) -> bool:
    """Return True if all threads of the process sleep, or if it has ended.

    The servers of NSQ listen before they take signals into their own hands. A SIGTERM between the
    two ends them as a kill does: at once, with nothing written, and not with 0. The thread that
    takes the signals is awake until it has them.
    """
    states = []
    for task in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"S"} or process.poll() is not None


def _forks_of_servers() -> Forks:
    """Return the process that forks for embedded servers. It lives as long as this process."""
    with _forking:
        if not _forks:
            _forks.append(Forks(_IMPORTED))
            atexit.register(_end_forks, os.getpid())
        return _forks[0]


def _end_forks(pid: int) -> None:
    # A test may fork this process, and its child may end in order.
    if os.getpid() == pid:
        _forks.pop().close()


class Server:
    """An nsqd, nsqlookupd or nsqadmin process. restart() keeps its ports and data folder."""

    def __init__(self, kind: str, program: str, flags: Sequence[str] = ()) -> None:
        self.kind = kind
        self.program = program
        self.flags = list(flags)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{program}-{kind}-"))
        self.data_path = self.folder / "data"
        self.data_path.mkdir()
        self.log_path = self.folder / "log"
        self.tcp_address: Address = ("127.0.0.1", 0)
        self.http_address: Address = ("127.0.0.1", 0)
        self.https_address: Address = ("127.0.0.1", 0)
        self.process: subprocess.Popen[bytes] | Fork | None = None
        self._held = HeldPorts()

    def command(self) -> list[str]:
        if self.kind == "real":
            words = [str(realnsq.program(self.program))]
        elif self.program == "nsqadmin":
            words = [sys.executable, "-m", "gnsqsync.admin"]
        else:
            words = [*_EMBEDDED, self.program]
        if self.program == "nsqadmin":
            return [*words, f"-http-address=127.0.0.1:{self.http_address[1]}", *self.flags]
        words.append(f"-tcp-address=127.0.0.1:{self.tcp_address[1]}")
        words.append(f"-http-address=127.0.0.1:{self.http_address[1]}")
        words.append("-broadcast-address=127.0.0.1")
        if self.program == "nsqd":
            words.append(f"-https-address=127.0.0.1:{self.https_address[1]}")
            words.append(f"-data-path={self.data_path}")
        return words + self.flags

    def start(self) -> Server:
        """Start it and wait for all its listeners. RuntimeError with the log if it ends."""
        wanted = {"HTTP"} if self.program == "nsqadmin" else {"TCP", "HTTP"}
        if any(flag.lstrip("-").startswith("tls-cert") for flag in self.flags):
            wanted.add("HTTPS")
        seen = self.log_path.stat().st_size if self.log_path.exists() else 0
        process = self._spawn()
        deadline = time.monotonic() + LIMIT
        while True:
            text = self.log_path.read_bytes()[seen:].decode(errors="replace")
            found = {name: (host, int(port)) for name, host, port in _LISTENING.findall(text)}
            if wanted <= found.keys():
                break
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.kind} {self.program} did not start:\n{self.log}")
            # A file has no event to wait for, so the log is polled.
            time.sleep(0.01)
        if self.kind == "real":
            eventually(lambda: _is_at_rest(process), LIMIT, pause=0.001)
        self.tcp_address = found.get("TCP", self.tcp_address)
        self.http_address = found["HTTP"]
        self.https_address = found.get("HTTPS", self.https_address)
        self._held.release()
        return self

    def run_to_the_end(self) -> int:
        """Start a server that cannot run. Return the exit status."""
        return self._spawn().wait(LIMIT)

    def _spawn(self) -> subprocess.Popen[bytes] | Fork:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        words = self.command()
        with open(self.log_path, "ab") as log:
            if words[: len(_EMBEDDED)] == _EMBEDDED:
                files = [Path(os.devnull), self.log_path, self.log_path]
                forks = _forks_of_servers()
                self.process = forks.start(words[1:], Path.cwd(), environment, files)
            else:
                self.process = subprocess.Popen(
                    words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
                )
        return self.process

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def terminate(self) -> None:
        """Ask it to stop cleanly. Do not wait."""
        if self.process is not None:
            self.process.terminate()

    def stop(self) -> int:
        """Stop it cleanly. Return its exit status. AssertionError if it does not end."""
        assert self.process is not None
        self.process.terminate()
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.program} ignores SIGTERM:\n{self.log}") from None
        self._hold_ports()
        return status

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self._hold_ports()

    def _hold_ports(self) -> None:
        addresses = (self.tcp_address, self.http_address, self.https_address)
        # A server in a network namespace of its own need not hold its ports.
        self._held.hold(*(a for a in addresses if a[0] == "127.0.0.1" and a[1]))

    def restart(self) -> None:
        """Stop it cleanly if it runs, then start it on the same ports and data."""
        assert self.process is not None
        if self.process.poll() is None:
            self.stop()
        self.start()

    def discard(self) -> None:
        """End it in any state, and remove its files."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self.kill()
        self._held.release()
        shutil.rmtree(self.folder, ignore_errors=True)


class Certificates:
    """An authority, a server certificate for 127.0.0.1 and localhost, and a client's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="certificates-"))
        self.ca_file = self.folder / "ca.pem"
        self.cert_file = self.folder / "server.pem"
        self.key_file = self.folder / "server.key"
        self.client_cert_file = self.folder / "client.pem"
        self.client_key_file = self.folder / "client.key"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        server = authority.issue_cert("127.0.0.1", "localhost")
        client = authority.issue_cert("client@example.org", common_name="the client")
        for issued, cert_file, key_file in (
            (server, self.cert_file, self.key_file),
            (client, self.client_cert_file, self.client_key_file),
        ):
            issued.cert_chain_pems[0].write_to_path(cert_file)
            issued.private_key_pem.write_to_path(key_file)

    @property
    def flags(self) -> tuple[str, str]:
        """nsqd's flags for the server certificate."""
        return (f"-tls-cert={self.cert_file}", f"-tls-key={self.key_file}")

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """Return a context that verifies the server."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if with_certificate:
            context.load_cert_chain(self.client_cert_file, self.client_key_file)
        return context

    def discard(self) -> None:
        shutil.rmtree(self.folder)


class Pool:
    """Servers that tests with the same flags share. The first request starts a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._certificates: Certificates | None = None
        self._servers: dict[tuple[str, ...], Server] = {}

    @property
    def certificates(self) -> Certificates:
        """The certificates of the session, made at the first request."""
        with self._lock:
            if self._certificates is None:
                self._certificates = Certificates()
        return self._certificates

    def get(self, kind: str, program: str, flags: Sequence[str], share: str) -> Server:
        key = (kind, program, share, *flags)
        with self._lock:
            server = self._servers.get(key)
            if server is None:
                server = Server(kind, program, flags)
                try:
                    server.start()
                except BaseException:
                    server.discard()
                    raise
                self._servers[key] = server
        return server

    def get_many(self, kind: str, program: str, count: int, share: str) -> list[Server]:
        """Return the servers of share 0, share 1 and so on. New ones start side by side."""
        keys = [(kind, program, f"{share} {number}") for number in range(count)]
        with self._lock:
            new = [Server(kind, program) for key in keys if key not in self._servers]
            # The servers are noted before they start, so that close() ends one that fails, too.
            self._servers.update(zip((k for k in keys if k not in self._servers), new, strict=True))
            threads = [threading.Thread(target=server.start) for server in new]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return [self._servers[key] for key in keys]

    def close(self) -> None:
        servers = list(self._servers.values())
        for server in servers:
            server.terminate()
        for server in servers:
            server.discard()
        if self._certificates is not None:
            self._certificates.discard()


class Site:
    """The servers of one kind for one test, and connections that end with the test."""

    def __init__(self, kind: str, pool: Pool) -> None:
        self.kind = kind
        self._pool = pool
        self._cancelled = threading.Event()
        self._clients: list[Client | LookupClient] = []
        self._servers: list[Server] = []

    @property
    def certificates(self) -> Certificates:
        return self._pool.certificates

    def nsqd(self, *flags: str, share: str = "") -> Server:
        """Return a running nsqd, shared with the tests that ask for the same flags and `share`."""
        return self._pool.get(self.kind, "nsqd", flags, share)

    def nsqds(self, count: int, share: str = "one of many") -> list[Server]:
        """Return ``count`` nsqds with default flags, shared like nsqd()."""
        return self._pool.get_many(self.kind, "nsqd", count, share)

    def nsqlookupd(self, *flags: str, share: str = "") -> Server:
        """Return a running nsqlookupd, shared like nsqd()."""
        return self._pool.get(self.kind, "nsqlookupd", flags, share)

    def own_nsqd(self, *flags: str) -> Server:
        """Return a new nsqd for this test alone, which may stop, kill or restart it."""
        return self._own("nsqd", flags)

    def own_nsqlookupd(self, *flags: str) -> Server:
        """Return a new nsqlookupd for this test alone."""
        return self._own("nsqlookupd", flags)

    def nsqadmin(self, *flags: str, share: str = "") -> Server:
        """Return a running nsqadmin, shared like nsqd()."""
        return self._pool.get(self.kind, "nsqadmin", flags, share)

    def own_nsqadmin(self, *flags: str) -> Server:
        """Return a new nsqadmin for this test alone."""
        return self._own("nsqadmin", flags)

    def _own(self, program: str, flags: Sequence[str]) -> Server:
        server = Server(self.kind, program, flags)
        self._servers.append(server)
        return server.start()

    def client(self, server: Server, *, magic: bytes = b"  V2") -> Client:
        """Return a TCP connection to an nsqd, which has sent the magic."""
        client = Client(server.tcp_address, magic)
        self._clients.append(client)
        return client

    def lookup_client(self, server: Server, *, magic: bytes = b"  V1") -> LookupClient:
        """Return a TCP connection to an nsqlookupd, which has sent the magic."""
        client = LookupClient(server.tcp_address, magic)
        self._clients.append(client)
        return client

    def sleep(self, seconds: float) -> None:
        """Wait, unless the session ends."""
        if self._cancelled.wait(max(0.0, seconds)):
            raise Cancelled

    def eventually(
        self, look: Callable[[], T], timeout: float = LIMIT, *, describe: Describe = None
    ) -> T:
        """Call `waiting.eventually()`, unless the session ends."""
        return eventually(look, timeout, describe=describe, sleep=self.sleep)

    def cancel(self) -> None:
        """Make a thread that runs a row here give up soon. Any thread may call."""
        self._cancelled.set()
        for client in list(self._clients):
            client.shutdown()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self._servers:
            server.discard()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("nsq").addoption(
        "--servers",
        choices=("all", *KINDS),
        default="all",
        help="run the tests that need servers on the embedded ones, the real ones, or both",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [marker.args[0] for marker in metafunc.definition.iter_markers("parametrize")]
    if "server_kind" in metafunc.fixturenames and "server_kind" not in given:
        chosen = metafunc.config.getoption("--servers")
        metafunc.parametrize("server_kind", KINDS if chosen == "all" else [chosen])


# This hook runs before the one that gives each test its ring and counts left-out tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep enough tests marked ``pairs`` for each pair of values of two parameters.

    The kinds of server take turns along the other parameters. With one other parameter each of its
    values has one kind, and the other kind in the next function of the file. If the command line
    has a kind, a test with its parameters, or ``--lf``, all chosen tests run.
    """
    is_chosen = any("[" in word for word in config.args) or config.getoption("lf", False)
    if config.getoption("--servers") != "all" or is_chosen:
        return
    if left_out := _whose_turn_it_is_not(items):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _whose_turn_it_is_not(items: list[pytest.Item]) -> list[pytest.Item]:
    # Values of each parameter of a function, in the order of the tests.
    values: dict[tuple[str, str], list[object]] = {}
    # The marked functions of each file, in their order.
    functions: dict[str, list[str]] = {}
    found = []
    for item in items:
        callspec: Any = getattr(item, "callspec", None)
        if callspec is None or item.get_closest_marker("pairs") is None:
            continue
        others = dict(callspec.params)
        kind = others.pop("server_kind")
        function = item.nodeid.partition("[")[0]
        beside = functions.setdefault(function.partition("::")[0], [])
        if function not in beside:
            beside.append(function)
        turn = beside.index(function)
        for name, value in others.items():
            known = values.setdefault((function, name), [])
            if value not in known:
                known.append(value)
            turn += known.index(value)
        if kind != KINDS[turn % len(KINDS)]:
            found.append(item)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # The skip is here and not in a fixture, so that pytest reports all of these skips as one.
    callspec = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("server_kind") != "real":
        return
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[Pool]:
    """Yield the shared servers of this session."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def certificates(server_pool: Pool) -> Certificates:
    """Return a certificate authority and its certificates, as files."""
    return server_pool.certificates


@pytest.fixture
def site(server_kind: str, server_pool: Pool) -> Iterator[Site]:
    """Yield servers of one kind. A test that asks for it runs once per kind."""
    site = Site(server_kind, server_pool)
    yield site
    site.close()
