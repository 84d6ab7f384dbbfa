"""The HTTP server of the embedded servers, on gevent, with TLS. Knows no route."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import gevent
from gevent.server import StreamServer

from gnsqsync.daemon.http_connection import Application, Connection
from gnsqsync.embedded.listeners import Gate

if TYPE_CHECKING:
    import ssl

_TLS_HANDSHAKE_TIMEOUT = 5.0
# Beginnings of plain HTTP requests, which Go recognizes on a port for TLS.
_PLAIN = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
_NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class _Server(StreamServer):  # type: ignore[misc]
    """A gevent server with a Gate, and with a timeout for TLS handshakes."""

    def __init__(
        self, listener: Any, app: Application, gate: Gate, tls: ssl.SSLContext | None
    ) -> None:
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
            Connection(sock, address, self._app, sleep=gevent.sleep).run()

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
        self, listener: Any, app: Application, gate: Gate, tls: ssl.SSLContext | None = None
    ) -> None:
        self._server = _Server(listener, app, gate, tls)

    def start(self) -> None:
        """Accept connections from now on. Return at once."""
        self._server.start()

    def stop(self) -> None:
        """Close the listener. Connections end with the process."""
        self._server.stop()
