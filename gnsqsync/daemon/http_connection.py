"""An HTTP connection of any server of gnsqsync: requests in turn, answers in the form of Go's
net/http, and keep-alive.

Knows sockets of threads and of greenlets. Knows no route.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

from gnsqsync.daemon.http_request import (
    MOST_HEAD,
    BadBody,
    Body,
    Head,
    Refused,
    Source,
    read_head,
)
from gnsqsync.daemon.web import TEXT_TYPE

__all__ = ["HEAD", "Application", "Broken", "Connection", "Limits", "Reply", "Stream"]

# Key of the request's Head in an environ.
HEAD = "gnsqsync.head"

# Bytes of an unwanted body that are read and dropped so that the connection can be kept.
_MOST_UNWANTED = 256 * 1024
# Seconds in which a client that is still sending can read its answer before a reset.
_LINGER = 0.5


class Stream(Protocol):
    """A body in parts whose length is not known before."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Free the stream. Called once, also if the client has left."""
        ...


Reply: TypeAlias = tuple[str, list[tuple[str, str]], bytes | Stream]
"""Status and phrase, headers, body."""
Application: TypeAlias = Callable[[dict[str, Any]], Reply]


class Broken(Exception):
    """The stream of an answer ends too early. The application has said why."""


class Limits(NamedTuple):
    """Limits for visitors that are slow, large or many. Times are in seconds."""

    visitors: int
    """Upper bound of connections at a time."""
    head_size: int
    """Upper bound of a request's head in bytes."""
    patience: float
    """Limit for a request's head, each part of a body or an answer, and between two requests."""
    whole_body: float
    """Limit for a whole body."""
    keeps: bool
    """True if a connection may have more than one request."""


_NO_LIMITS = Limits(0, MOST_HEAD, inf, inf, keeps=True)


class Connection:
    """The connection of one client. Without ``limits`` it may take any time."""

    def __init__(
        self,
        sock: Any,
        address: Any,
        app: Application,
        limits: Limits | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sock = sock
        self._app = app
        self._remote = address[:2] if isinstance(address, tuple) else ("", "")
        self._limits = limits or _NO_LIMITS
        # A timeout costs a system call, so a server without limits sets none.
        self._is_timed = limits is not None
        self._sleep = sleep
        # Time at which the client must have sent what is awaited.
        self._deadline = 0.0
        # True while no request is being answered.
        self.is_silent: bool = True
        self._source = Source(self._receive if self._is_timed else sock.recv)

    def run(self) -> None:
        """Answer requests until the client or a limit ends the connection. The caller closes it."""
        try:
            self._serve()
        except Refused as refused:
            self._refuse(refused)
        except (OSError, Broken):
            # The client is gone or too slow, and nobody waits for an answer.
            return

    def _allow(self, seconds: float) -> None:
        if self._is_timed:
            self._deadline = time.monotonic() + seconds

    def _receive(self, size: int) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        self._sock.settimeout(min(left, self._limits.patience))
        part: bytes = self._sock.recv(size)
        return part

    def _write(self, data: bytes) -> None:
        if self._is_timed:
            self._sock.settimeout(self._limits.patience)
        self._sock.sendall(data)

    def _refuse(self, refused: Refused) -> None:
        try:
            self._write(
                f"HTTP/1.1 {refused.line}\r\nContent-Type: {TEXT_TYPE}\r\n"
                f"Connection: close\r\n\r\n{refused.text}".encode()
            )
            if refused.is_long:
                self._linger()
        except OSError:
            return

    def _serve(self) -> None:
        limits = self._limits
        after_post = False
        while True:
            self._allow(limits.patience)
            head = read_head(self._source, after_post=after_post, most=limits.head_size)
            if head is None:
                return
            self.is_silent = False
            self._allow(limits.whole_body)
            if not self._answer(head):
                return
            self.is_silent = True
            self._allow(limits.patience)
            # Go takes an end within the first four bytes for a close, and not for a bad request.
            if len(self._source.peek(4)) < 4:
                return
            after_post = head.method == "POST"

    def _answer(self, head: Head) -> bool:
        """Answer the request. Return True if another request may follow."""
        invite = None
        if "100-continue" in head.expects.replace(",", " ").split():
            if head.length and not head.is_old:
                invite = self._invite
        elif head.expects:
            self._send(head, ("417 Expectation Failed", [("Content-Length", "0")], b""), "close")
            return False
        body = Body(self._source, head.length, invite)
        reply = self._app(
            {
                "REQUEST_METHOD": head.method,
                "PATH_INFO": head.path,
                "QUERY_STRING": head.query,
                "CONTENT_LENGTH": head.length,
                "REMOTE_ADDR": self._remote[0],
                "REMOTE_PORT": self._remote[1],
                "wsgi.input": body,
                HEAD: head,
            }
        )
        try:
            return self._reply(reply, head, body, has_invite=invite is not None)
        finally:
            if not isinstance(reply[2], bytes):
                reply[2].close()

    def _reply(self, reply: Reply, head: Head, body: Body, *, has_invite: bool) -> bool:
        # An old client finds the end of a stream at the end of the connection.
        is_endless = head.is_old and not isinstance(reply[2], bytes)
        is_last = is_endless or not self._limits.keeps
        # A client that was not invited may send its body or the next request. The server cannot
        # tell them apart, so it closes the connection.
        closes = is_last or head.closes or (has_invite and not body.is_whole)
        body.invite = None
        is_long = False
        if not closes:
            # The rest of the body is read first, for clients that read no answer before they have
            # sent the whole request.
            is_long = _skip(body)
            closes = not body.is_whole
        connection = "keep-alive" if head.keeps_alive and not is_last else ""
        if is_long or (closes and not head.is_old):
            connection = "close"
        self._send(head, reply, connection)
        if closes and (body.is_chunked or not head.closes):
            is_long = _skip(body) or is_long
        if is_long:
            self._linger()
        return not closes

    def _invite(self) -> None:
        self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send(self, head: Head, reply: Reply, connection: str) -> None:
        status, headers, body = reply
        lines = [f"HTTP/1.{0 if head.is_old else 1} {status}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()))
        if connection:
            lines.append(f"Connection: {connection}")
        is_chunked = not isinstance(body, bytes) and not head.is_old
        if is_chunked:
            lines.append("Transfer-Encoding: chunked")
        first = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        if isinstance(body, bytes):
            self._write(first + body)
            return
        self._write(first)
        for part in body:
            if part:
                self._write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
        if is_chunked:
            self._write(b"0\r\n\r\n")

    def _linger(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)
        self._sleep(_LINGER)


def _skip(body: Body) -> bool:
    """Read and drop the rest of the body. Return True if it is longer than the limit."""
    left = _MOST_UNWANTED
    if body.unread >= left and not body.is_chunked:
        return True
    try:
        while left > 0 and (part := body.read(left)):
            left -= len(part)
    except (BadBody, TimeoutError):
        return False
    return not body.is_whole
