"""nsqadmin on gevent's web server, with limits for slow and many visitors."""

from __future__ import annotations

import socket
import time
from http.client import HTTPException
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from gnsqsync.admin.app import Admin
from gnsqsync.admin.options import AdminOptions
from gnsqsync.daemon import flags
from gnsqsync.daemon.framing import HeaderLines, fault
from gnsqsync.daemon.options import OptionsError, is_loopback
from gnsqsync.daemon.parent import wait_for_end_of_stdin
from gnsqsync.process.signals import told_on_gevent

__all__ = ["serve"]

# Upper bound of connections at a time. Further ones wait until another one ends.
_MOST_VISITORS = 1000
# Seconds for the head of a request, for each part of a body, and between two requests.
_PATIENCE = 30.0
# Seconds for a whole body. The largest form has 16 MiB.
_PATIENCE_OF_BODY = 120.0


class _Handler(WSGIHandler):  # type: ignore[misc]
    rfile: Any

    def __init__(self, sock: Any, *arguments: Any) -> None:
        sock.settimeout(_PATIENCE)
        super().__init__(sock, *arguments)

    def read_requestline(self) -> Any:
        return gevent.with_timeout(_PATIENCE, super().read_requestline, timeout_value=None)

    def read_request(self, raw_requestline: Any) -> Any:
        """Read the headers. ValueError, answered as 400, for malformed ones that gevent accepts."""
        connection = self.rfile
        self.rfile = headers = HeaderLines(connection)
        try:
            found = gevent.with_timeout(
                _PATIENCE, super().read_request, raw_requestline, timeout_value=False
            )
        except HTTPException as error:  # There are more than 100 headers, or one is too long.
            raise ValueError(str(error)) from None
        finally:
            self.rfile = connection
        why = fault(headers.lines, self.request_version) if found else ""
        if why:
            raise ValueError(why)
        return found

    def _connection_upgrade_requested(self) -> bool:
        # gevent would give the application of an upgrade the connection beyond the body's end.
        return False

    def get_environ(self) -> Any:
        environ = super().get_environ()
        environ["wsgi.input"] = _Body(environ["wsgi.input"])
        return environ


class _Body:
    """The body of a request, with a deadline for the whole body."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._deadline = time.monotonic() + _PATIENCE_OF_BODY

    def read(self, size: int) -> Any:
        """Read up to ``size`` bytes. TimeoutError after the deadline."""
        left = max(0.0, self._deadline - time.monotonic())
        part = gevent.with_timeout(left, self._source.read, size, timeout_value=None)
        if part is None:
            raise TimeoutError("the body is too slow")
        return part


def serve(options: AdminOptions, *, exit_with_parent: bool = False) -> None:
    """Serve in a patched process until a signal comes. With ``exit_with_parent`` stdin ends it.

    Raises:
        OptionsError: nsqadmin cannot start.
    """
    admin = Admin(options)
    admin.log.info("%s", flags.version_text("nsqadmin"))
    listener = _listener(options.http_address)
    address = _shown(listener)
    admin.log.info("HTTP: listening on %s", address)
    if not is_loopback(address):
        admin.log.warning("%s can be reached from other machines", address)
    server = WSGIServer(
        listener,
        admin,
        spawn=Pool(_MOST_VISITORS),
        # The application logs each request in nsqadmin's form.
        log=None,
        handler_class=_Handler,
    )
    try:
        with told_on_gevent() as told:
            server.start()
            if exit_with_parent:
                gevent.spawn(wait_for_end_of_stdin).link(lambda _: told.set())
            told.wait()
            admin.log.info("HTTP: closing %s", address)
            # Requests that are being answered are cut off, as in nsqadmin.
            server.stop(timeout=0)
    finally:
        admin.close()


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        # An empty host means all interfaces, as in Go.
        infos = socket.getaddrinfo(
            host.strip("[]") or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
        family, kind, proto, _, place = infos[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(128)
        except BaseException:  # Only this function knows the socket.
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise OptionsError(f"listen ({address}) failed - {error}") from None
    return listener


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
