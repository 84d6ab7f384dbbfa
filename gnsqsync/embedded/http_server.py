"""gevent's WSGI server with the settings that the embedded servers need. Knows no route."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from typing import Any

from gevent.pywsgi import WSGIHandler, WSGIServer

from gnsqsync.embedded.listeners import Gate
from gnsqsync.embedded.web import RAW_PATH, App

_TLS_HANDSHAKE_TIMEOUT = 5.0
# Go reads the length of a body as a signed number of 64 bits, without a sign.
_LENGTH = re.compile("[0-9]{1,18}")


class _Handler(WSGIHandler):  # type: ignore[misc]
    """No access log, and no wait for the peer's ACK between an answer's headers and body."""

    def __init__(self, sock: Any, address: Any, server: Any) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(sock, address, server)

    def read_request(self, raw_requestline: str) -> Any:
        """Refused headers are the client's error: gevent prints a traceback unless it is a
        ValueError."""
        try:
            is_good = super().read_request(raw_requestline)
        except http.client.HTTPException as error:
            raise ValueError(str(error)) from error
        if is_good:
            # gevent looks at the first Content-Length only, and reads it as Python does.
            lengths = {value.strip() for value in self.headers.get_all("Content-Length", ())}
            if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
                raise ValueError("bad Content-Length")
        return is_good

    def get_environ(self) -> dict[str, Any]:
        """WSGI's PATH_INFO is decoded and does not show whether it could be."""
        environ: dict[str, Any] = super().get_environ()
        environ[RAW_PATH] = self.path.partition("?")[0]
        return environ

    def log_request(self) -> None:
        """Nothing: App logs its requests itself."""


class _Server(WSGIServer):  # type: ignore[misc]
    """A server with a gate, and a limit for TLS handshakes, which gevent does not have."""

    gate: Gate

    def handle(self, sock: Any, address: Any) -> None:
        if self.ssl_enabled:
            sock.settimeout(None)
            super().handle(sock, address)
        else:
            self.gate.serve(super().handle, sock, address)

    def wrap_socket_and_handle(self, sock: Any, address: Any) -> None:
        self.gate.serve(self._serve_tls, sock, address)

    def _serve_tls(self, sock: Any, address: Any) -> None:
        sock.settimeout(_TLS_HANDSHAKE_TIMEOUT)
        try:
            super().wrap_socket_and_handle(sock, address)
        except OSError:
            # The client's fault; gevent would print a traceback.
            return


class HTTPServer:
    """Serves ``app`` on a listening gevent socket, HTTP/1.1 with keep-alive, until stop().

    ``gate`` counts the connections. ``tls``: a server-side SSLContext makes it HTTPS. Runs in
    greenlets of the calling thread.
    """

    def __init__(
        self, listener: Any, app: App, gate: Gate, tls: ssl.SSLContext | None = None
    ) -> None:
        options = {} if tls is None else {"ssl_context": tls}
        self._server = _Server(
            listener,
            app,
            log=None,
            error_log=None,
            # Given because gevent would ask the DNS for it.
            environ={"SERVER_NAME": "localhost"},
            handler_class=_Handler,
            **options,
        )
        self._server.gate = gate

    def start(self) -> None:
        """Accepts connections from now on; returns at once."""
        self._server.start()

    def stop(self) -> None:
        """Closes the listener; requests under way get a moment to end, then all is closed."""
        self._server.stop(timeout=0.2)
