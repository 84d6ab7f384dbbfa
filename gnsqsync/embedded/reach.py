"""A test call of nsqd to itself, at the addresses that nsqlookupd hands out.

Knows enough of nsqd's protocol to send IDENTIFY. Knows no server.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import gevent
from gevent import socket

from gnsqsync.daemon.options import is_loopback

__all__ = ["is_certain", "unreachable"]

# Seconds for each address, including the resolver.
_TIMEOUT = 5.0


def is_certain(host: str, port: int, listens_on: str) -> bool:
    """Return True if ``host:port`` is the listener's own address on loopback."""
    if listens_on.rpartition(":")[2] != str(port) or not is_loopback(listens_on):
        return False
    return is_loopback(f"{host}:{port}")


def unreachable(
    host: str, tcp_port: int, http_port: int, token: str, has_come: Callable[[], bool]
) -> list[str]:
    """Call both addresses. Return those that fail, each with the reason.

    ``has_come`` returns True if a client with the name ``token`` has connected to this nsqd. If
    ``http_port`` is 0, the HTTP API is not registered and not called.
    """
    found = []
    for port in (tcp_port, http_port) if http_port else (tcp_port,):
        try:
            with gevent.Timeout(_TIMEOUT, TimeoutError("timed out")):
                if not port:
                    raise OSError("no TCP port is registered")
                with socket.create_connection((host, port)) as sock:
                    if port == tcp_port:
                        _identify(sock, token, has_come)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            found.append(f"{host}:{port} ({reason})")
    return found


def _identify(sock: Any, token: str, has_come: Callable[[], bool]) -> None:
    """Send the token. OSError if this nsqd does not receive it."""
    body = json.dumps({"client_id": token, "hostname": token, "heartbeat_interval": -1}).encode()
    sock.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    answer = sock.recv(4096)
    if not has_come():
        raise OSError("another server answers there" if answer else "no nsqd answers there")
