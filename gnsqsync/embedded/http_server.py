"""HTTP connections of the embedded servers, on gevent: requests in turn, answers in the form of
Go's net/http, and keep-alive. Knows no route."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import gevent
from gevent.server import StreamServer

from gnsqsync.daemon.web import TEXT_TYPE, Answered, App
from gnsqsync.embedded.http_request import BadBody, Body, Head, Refused, Source, read_head
from gnsqsync.embedded.listeners import Gate

if TYPE_CHECKING:
    import ssl

_TLS_HANDSHAKE_TIMEOUT = 5.0
# Bytes of an unwanted body that are read and dropped so that the connection can be kept.
_MOST_UNWANTED = 256 * 1024
# Seconds in which a client that is still sending can read its answer before a reset.
_LINGER = 0.5
# Beginnings of plain HTTP requests, which Go recognizes on a port for TLS.
_PLAIN = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
_NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class _Connection:
    """The connection of one client."""

    def __init__(self, sock: Any, address: Any, app: App) -> None:
        self._sock = sock
        self._app = app
        self._remote = address[:2] if isinstance(address, tuple) else ("", "")
        self._source = Source(sock.recv)

    def run(self) -> None:
        try:
            self._serve()
        except Refused as refused:
            self._refuse(refused)
        except OSError:
            # The client is gone, and nobody waits for an answer.
            return

    def _refuse(self, refused: Refused) -> None:
        try:
            self._sock.sendall(
                f"HTTP/1.1 {refused.line}\r\nContent-Type: {TEXT_TYPE}\r\n"
                f"Connection: close\r\n\r\n{refused.text}".encode()
            )
            if refused.is_long:
                self._linger()
        except OSError:
            return

    def _serve(self) -> None:
        after_post = False
        while (head := read_head(self._source, after_post=after_post)) is not None:
            # Go takes an end within the first four bytes for a close, and not for a bad request.
            if not self._answer(head) or len(self._source.peek(4)) < 4:
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
        answer = self._app(
            {
                "REQUEST_METHOD": head.method,
                "PATH_INFO": head.path,
                "QUERY_STRING": head.query,
                "CONTENT_LENGTH": head.length,
                "REMOTE_ADDR": self._remote[0],
                "REMOTE_PORT": self._remote[1],
                "wsgi.input": body,
            }
        )
        # A client that was not invited may send its body or the next request. The server cannot
        # tell them apart, so it closes the connection.
        closes = head.closes or (invite is not None and not body.is_whole)
        body.invite = None
        is_long = False
        if not closes:
            # The rest of the body is read first, for clients that read no answer before they have
            # sent the whole request.
            is_long = _skip(body)
            closes = not body.is_whole
        connection = "keep-alive" if head.keeps_alive else ""
        if is_long or (closes and not head.is_old):
            connection = "close"
        self._send(head, answer, connection)
        if closes and (body.is_chunked or not head.closes):
            is_long = _skip(body) or is_long
        if is_long:
            self._linger()
        return not closes

    def _invite(self) -> None:
        self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send(self, head: Head, answer: Answered, connection: str) -> None:
        status, headers, body = answer
        lines = [f"HTTP/1.{0 if head.is_old else 1} {status}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()))
        if connection:
            lines.append(f"Connection: {connection}")
        self._sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def _linger(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)
        gevent.sleep(_LINGER)


def _skip(body: Body) -> bool:
    """Read and drop the rest of the body. Return True if it is longer than the limit."""
    left = _MOST_UNWANTED
    if body.unread >= left and not body.is_chunked:
        return True
    try:
        while left > 0 and (part := body.read(left)):
            left -= len(part)
    except BadBody:
        return False
    return not body.is_whole


class _Server(StreamServer):  # type: ignore[misc]
    """A gevent server with a Gate, and with a timeout for TLS handshakes."""

    def __init__(self, listener: Any, app: App, gate: Gate, tls: ssl.SSLContext | None) -> None:
        super().__init__(listener, None, **({} if tls is None else {"ssl_context": tls}))
        self._app = app
        self._gate = gate

    def handle(self, sock: Any, address: Any) -> None:
        """Serve one connection. gevent calls this in a greenlet of its own."""
        self._gate.serve(self._serve, sock, address)

    def _serve(self, sock: Any, address: Any) -> None:
        with sock:
            if sock.family != socket.AF_UNIX:
                # Otherwise an answer would wait for the peer's ACK of "100 Continue".
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Connection(sock, address, self._app).run()

    def wrap_socket_and_handle(self, sock: Any, address: Any) -> None:
        """Shake hands for TLS, then serve the connection as ``handle`` does."""
        self._gate.serve(self._serve_tls, sock, address)

    def _serve_tls(self, sock: Any, address: Any) -> None:
        sock.settimeout(_TLS_HANDSHAKE_TIMEOUT)
        try:
            if sock.recv(5, socket.MSG_PEEK) in _PLAIN:
                # A close with unread bytes would reset the connection, so they are read first.
                sock.recv(65536)
                sock.sendall(_NO_TLS)
                return
            wrapped = self.wrap_socket(sock, **self.ssl_args)
            wrapped.settimeout(None)
            self._serve(wrapped, address)
        except OSError:
            # The handshake failed, which is the client's fault.
            return


class HTTPServer:
    """A server of ``app`` on a listening gevent socket, HTTP/1.1 with keep-alive.

    ``gate`` counts the connections. ``tls``: a server-side SSLContext makes it HTTPS. Runs in
    greenlets of the calling thread.
    """

    def __init__(
        self, listener: Any, app: App, gate: Gate, tls: ssl.SSLContext | None = None
    ) -> None:
        self._server = _Server(listener, app, gate, tls)

    def start(self) -> None:
        """Accept connections from now on. Return at once."""
        self._server.start()

    def stop(self) -> None:
        """Close the listener. Connections end with the process."""
        self._server.stop()
