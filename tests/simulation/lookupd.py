"""nsqlookupd on the simulated network: the embedded one's sessions and HTTP API, and a shell."""

from __future__ import annotations

import io
import json
import struct

from gnsqsync.daemon.flags import NSQ_VERSION
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.web import Answered, App
from gnsqsync.embedded.lookupd import MAGIC, LookupSession, identity
from gnsqsync.embedded.lookupd_server import LookupdHTTPApi
from gnsqsync.embedded.options import LookupdOptions
from gnsqsync.embedded.registrations import RegistrationDB
from tests.simulation.network import End, Network
from tests.simulation.scheduler import Scheduler

__all__ = ["SimLookupd"]


class SimLookupd:
    """One nsqlookupd. Its registrations are lost when it ends.

    ``answer_seconds``: how long it takes to answer an HTTP request. ``drips``: it sends one byte
    at a time, at such distances (seconds).
    """

    def __init__(
        self, name: str, scheduler: Scheduler, network: Network, log: io.TextIOBase
    ) -> None:
        self.name = name
        self.tcp_port = 4160
        self.http_port = 4161
        self.scheduler = scheduler
        self.network = network
        self.is_up = False
        self.answer_seconds = 0.0005
        self.drips: float | None = None
        # When an HTTP request was there as a whole (seconds).
        self.asked: list[float] = []
        # An answer in place of all: (status line, body).
        self.lies: tuple[str, bytes] | None = None
        self._log = Log(f"[{name}] ", "warn", log)
        self._identity = identity(name, name, self.tcp_port, self.http_port)
        self.db = RegistrationDB()

    @property
    def url(self) -> str:
        return f"http://{self.name}:{self.http_port}"

    def greeting(self, nsqd: str, port: int) -> bytes:
        """How an nsqd begins."""
        about = json.dumps(
            {
                "broadcast_address": nsqd,
                "hostname": nsqd,
                "http_port": port + 1,
                "tcp_port": port,
                "version": NSQ_VERSION,
            }
        ).encode()
        return MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(about)) + about

    def channels(self, topic: str) -> list[str]:
        status, _, body = self._ask("GET", "/channels", f"topic={topic}")
        return list(json.loads(body)["channels"]) if status.startswith("200") else []

    def _ask(self, method: str, path: str, query: str) -> Answered:
        return self._api(
            {
                "REQUEST_METHOD": method,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_LENGTH": 0,
                "wsgi.input": io.BytesIO(),
            }
        )

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.db = RegistrationDB()
        api = LookupdHTTPApi(self.db, LookupdOptions(), self._log, self.scheduler.wall)
        self._api = App(api.routes(), self._log)
        self.network.off.pop(self.name, None)
        self.network.listeners[self.name, self.tcp_port] = lambda end: _Producer(self, end).begin()
        self.network.listeners[self.name, self.http_port] = lambda end: _Asker(self, end).begin()

    def kill(self) -> None:
        if self.is_up:
            self.is_up = False
            for port in (self.tcp_port, self.http_port):
                self.network.listeners.pop((self.name, port), None)
            for end in self.network.ends_of(self.name):
                end.close()

    def answer(self, request: bytes) -> bytes:
        """To a whole HTTP request."""
        line = request.split(b"\r\n", 1)[0].decode()
        method, target, _ = line.split(" ", 2)
        path, _, query = target.partition("?")
        status, headers, body = self._ask(method, path, query)
        if self.lies is not None:
            status, body = self.lies
            headers = [("Content-Length", str(len(body)))]
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Producer:
    """The connection of an nsqd."""

    def __init__(self, lookupd: SimLookupd, end: End) -> None:
        self._lookupd = lookupd
        self._end = end
        self._session = LookupSession(lookupd.db, end.peer.address, lookupd._identity, lookupd._log)

    def begin(self) -> None:
        self._end.handler = self

    def readable(self) -> None:
        end, session = self._end, self._session
        while not session.closed and (data := end.take()):
            answer = session.feed(data, self._lookupd.scheduler.wall())
            try:
                end.send(answer)
            except OSError:
                session.closed = True
        if session.closed or end.has_eof or end.is_reset:
            session.end()
            end.close()

    def writable(self) -> None:
        """Answers are short."""


class _Asker:
    """An HTTP client: one request after the other."""

    def __init__(self, lookupd: SimLookupd, end: End) -> None:
        self._lookupd = lookupd
        self._end = end
        self._request = b""
        self._unsent = b""

    def begin(self) -> None:
        self._end.handler = self

    def readable(self) -> None:
        end = self._end
        while data := end.take():
            self._request += data
        while b"\r\n\r\n" in self._request:
            request, _, self._request = self._request.partition(b"\r\n\r\n")
            self._lookupd.asked.append(self._lookupd.scheduler.now)
            self._lookupd.scheduler.after(
                self._lookupd.answer_seconds, lambda request=request: self._answer(request)
            )
        if end.has_eof or end.is_reset:
            end.close()

    def _answer(self, request: bytes) -> None:
        if self._lookupd.is_up and not self._end.is_closed:
            self._unsent += self._lookupd.answer(request)
            self.writable()

    def writable(self) -> None:
        drips = self._lookupd.drips
        if not self._unsent or self._end.is_closed:
            return
        try:
            sent = self._end.send(self._unsent if drips is None else self._unsent[:1])
        except OSError:
            self._end.close()
            return
        self._unsent = self._unsent[sent:]
        if drips is not None:
            self._lookupd.scheduler.after(drips, self.writable)
