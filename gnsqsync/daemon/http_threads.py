"""An HTTP server with a thread for each connection, or a greenlet in a process that gevent has
patched.

Knows sockets and threads. Knows no route.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from gnsqsync.daemon.http_connection import Application, Connection, Limits

__all__ = ["ThreadServer", "listen"]

# Seconds before the next accept() after one that failed, such as for want of descriptors.
_PAUSE = 0.1


def listen(host: str | None, port: int | str) -> socket.socket:
    """Return a listening socket. None means all interfaces; for port 0 the kernel chooses one.

    OSError, or OverflowError for too large a port, if the socket cannot listen.
    """
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    family, kind, proto, _, place = found[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except BaseException:  # Only this function knows the socket.
        listener.close()
        raise
    return listener


class ThreadServer:
    """A server of ``app`` on a listening socket, which ``stop`` closes.

    If all connections that ``limits`` allows are open, a new one takes the place of the oldest one
    on which no request is being answered. If there is none, the new one waits.
    """

    def __init__(
        self, listener: socket.socket, app: Application, limits: Limits, name: str
    ) -> None:
        self._listener = listener
        self._app = app
        self._limits = limits
        self._name = name
        self._slots = threading.Semaphore(limits.visitors)
        # Guards the two fields below.
        self._lock = threading.Lock()
        # The open connections, the oldest first.
        self._open: dict[Any, tuple[Connection, threading.Thread]] = {}
        # Set by ``stop``: no further connection is served.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)

    def start(self) -> None:
        """Accept connections from now on. Return at once."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Close the listener, cut all connections, and wait ``seconds`` at most for their threads.

        A thread stays longer if its page hangs. It does not keep the process.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            self._stopped.set()
            # The shutdown wakes accept().
            _shut(self._listener)
            threads = [self._thread]
            for sock, (_, thread) in self._open.items():
                _shut(sock)
                threads.append(thread)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError:
                # No descriptor is free, the visitor has left, or the server stops.
                self._stopped.wait(_PAUSE)
                continue
            if not self._slots.acquire(blocking=False):
                self._make_room()
                self._slots.acquire()
            self._begin(sock, address)

    def _make_room(self) -> None:
        """Cut the oldest connection that awaits a request."""
        with self._lock:
            for sock, (connection, _) in self._open.items():
                if connection.is_silent:
                    _shut(sock)
                    return

    def _begin(self, sock: Any, address: Any) -> None:
        connection = Connection(sock, address, self._app, self._limits)
        thread = threading.Thread(
            target=self._serve, args=(sock, connection), name=f"{self._name} visitor", daemon=True
        )
        with self._lock:
            if not self._stopped.is_set():
                self._open[sock] = connection, thread
                try:
                    # Under the lock, because ``stop`` joins only threads that were started.
                    thread.start()
                    return
                except RuntimeError:  # The system has no thread left.
                    del self._open[sock]
        sock.close()
        self._slots.release()

    def _serve(self, sock: Any, connection: Connection) -> None:
        try:
            # Otherwise the second part of a stream would wait for the visitor's ACK of the first.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.run()
        except OSError:
            # The visitor left before the first option.
            return
        finally:
            with self._lock:
                del self._open[sock]
            sock.close()
            self._slots.release()


def _shut(sock: Any) -> None:
    """End what any thread awaits on the socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The visitor has left.
        return
