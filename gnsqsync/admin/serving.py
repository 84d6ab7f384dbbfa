"""nsqadmin on the HTTP server of ``daemon/``, with limits for slow and many visitors."""

from __future__ import annotations

import socket

import gevent

from gnsqsync.admin.app import Admin
from gnsqsync.admin.options import AdminOptions
from gnsqsync.daemon import flags
from gnsqsync.daemon.http_connection import Limits
from gnsqsync.daemon.http_threads import ThreadServer, listen
from gnsqsync.daemon.options import OptionsError, is_loopback
from gnsqsync.daemon.parent import wait_for_end_of_stdin
from gnsqsync.daemon.wsgi import from_wsgi
from gnsqsync.process.signals import told_on_gevent

__all__ = ["serve"]

# The largest form has 16 MiB.
_LIMITS = Limits(visitors=1000, head_size=65536, patience=30.0, whole_body=120.0, keeps=True)


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
    # The process is patched, so each visitor has a greenlet. The application logs each request in
    # nsqadmin's form.
    app = from_wsgi(admin, listener.getsockname()[:2])
    server = ThreadServer(listener, app, _LIMITS, "nsqadmin")
    try:
        with told_on_gevent() as told:
            server.start()
            if exit_with_parent:
                gevent.spawn(wait_for_end_of_stdin).link(lambda _: told.set())
            told.wait()
            admin.log.info("HTTP: closing %s", address)
            # Requests that are being answered are cut off, as in nsqadmin.
            server.stop(0.0)
    finally:
        admin.close()


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        # An empty host means all interfaces, as in Go.
        return listen(host.strip("[]") or None, port)
    except (OSError, OverflowError) as error:
        raise OptionsError(f"listen ({address}) failed - {error}") from None


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
