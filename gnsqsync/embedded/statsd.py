"""nsqd's push to statsd: its lines, its packets, and the greenlet that sends them.

``Meter``, ``expand_prefix`` and ``packets`` do no I/O; ``Pusher`` has the socket. Knows the figures
of stats.py, but no topic or channel. The lines are those that nsqd 1.3.0 was seen to send
(tests/conformance/test_12_statsd.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import is_ephemeral
from gnsqsync.embedded.options import NsqdOptions

__all__ = ["Meter", "Pusher", "expand_prefix", "packets"]

Figures = dict[str, Any]
Collect = Callable[[], tuple[list[Figures], "dict[str, int] | None"]]
"""Returns the topics of /stats, and the memory figures, or None if they are not sent."""

_DIAL_TIMEOUT = 1.0
# Seconds between the end of a push and the next one. A push is spread over the rest of the
# interval, so that its packets do not arrive at once.
_REST = 1.0
_DEFAULT_PACKET_SIZE = 4096

_TOPIC = (("message_count", "c"), ("message_bytes", "c"), ("depth", "g"), ("backend_depth", "g"))
_CHANNEL = (
    # key in /stats, name in statsd, counter or gauge
    ("message_count", "message_count", "c"),
    ("depth", "depth", "g"),
    ("backend_depth", "backend_depth", "g"),
    ("in_flight_count", "in_flight_count", "g"),
    ("deferred_count", "deferred_count", "g"),
    ("requeue_count", "requeue_count", "c"),
    ("timeout_count", "timeout_count", "c"),
    ("client_count", "clients", "g"),
)


def expand_prefix(prefix: str, host: str, port: int) -> str:
    """Return --statsd-prefix with host and port in place of each ``%s``, and a dot at its end.

    Dots and colons of ``host:port`` become ``_``. An empty prefix stays empty.
    """
    if not prefix:
        return ""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    expanded = prefix.replace("%s", where.replace(".", "_").replace(":", "_"))
    return expanded if expanded.endswith(".") else f"{expanded}."


def packets(lines: Iterable[bytes], size: int) -> list[bytes]:
    """Return the lines in packets of at most ``size`` bytes. A longer line is a packet alone.

    A size of 0 or less means 4096, as in Go's buffers.
    """
    limit = size if size > 0 else _DEFAULT_PACKET_SIZE
    found: list[bytes] = []
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > limit:
            found.append(packet)
            packet = b""
        packet += line
    if packet:
        found.append(packet)
    return found


class Meter:
    """A converter of figures to statsd lines. A counter's line has the increase since the last one.

    A new topic or channel counts from 0. If a topic was deleted and made again, the increase may be
    negative, as in nsqd.
    """

    def __init__(self, prefix: str, *, exclude_ephemeral: bool = False) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self._last: dict[tuple[str, ...], int] = {}
        self._counters: dict[tuple[str, ...], int] = {}

    def lines(self, topics: Iterable[Figures], memory: dict[str, int] | None) -> list[bytes]:
        """Return the lines of one push. ``topics`` is as in /stats; ``memory`` may be None."""
        self._counters = {}
        found = [*self._topics(topics), *self._memory(memory)]
        self._last = self._counters
        return [f"{self._prefix}{line}\n".encode("utf-8", "surrogateescape") for line in found]

    def _topics(self, topics: Iterable[Figures]) -> Iterator[str]:
        for topic in topics:
            name = topic["topic_name"]
            if self._left_out(name):
                continue
            for key, kind in _TOPIC:
                yield self._line(f"topic.{name}.{key}", kind, topic[key], (name, key))
            yield from _quantiles(f"topic.{name}", topic)
            for channel in topic["channels"]:
                if not self._left_out(channel["channel_name"]):
                    yield from self._channel(name, channel)

    def _channel(self, topic_name: str, channel: Figures) -> Iterator[str]:
        name = channel["channel_name"]
        stem = f"topic.{topic_name}.channel.{name}"
        for key, stat, kind in _CHANNEL:
            yield self._line(f"{stem}.{stat}", kind, channel[key], (topic_name, name, key))
        yield from _quantiles(stem, channel)

    def _memory(self, memory: dict[str, int] | None) -> Iterator[str]:
        for key, value in (memory or {}).items():
            if key == "gc_total_runs":
                yield self._line("mem.gc_runs", "c", value, (key,))
            else:
                yield self._line(f"mem.{key}", "g", value, (key,))

    def _left_out(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)

    def _line(self, stat: str, kind: str, value: int, identity: tuple[str, ...]) -> str:
        # Names may contain dots, so two topics may have one stat. The identity tells them apart.
        if kind == "c":
            self._counters[identity] = value
            value -= self._last.get(identity, 0)
        return f"{stat}:{value}|{kind}"


def _quantiles(stem: str, figures: Figures) -> Iterator[str]:
    for entry in figures["e2e_processing_latency"]["percentiles"] or ():
        quantile = f"{entry['quantile'] * 100:.0f}"
        yield f"{stem}.e2e_processing_latency_{quantile}:{int(entry['value'])}|g"


class Pusher:
    """A greenlet that sends a push over UDP each --statsd-interval, until ``stop``.

    ``options`` have the expanded prefix. With an interval of one second or less a push is sent at
    once instead of spread (the Go nsqd crashes). Everything runs in the thread of ``start``.
    """

    def __init__(self, options: NsqdOptions, collect: Collect, log: Log) -> None:
        self._options = options
        self._collect = collect
        self._log = log
        self._meter = Meter(
            options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral
        )
        self._ending = Event()
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Start the greenlet. The first push is one interval from now."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Send the rest of the current push at once, then return."""
        self._ending.set()
        if self._greenlet is not None:
            self._greenlet.join()
            self._log.info("STATSD: closing")

    def _run(self) -> None:
        interval = self._options.statsd_interval
        due = time.monotonic() + interval
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            self._push(max(0.0, interval - _REST))
            # If a push took longer than an interval, the missed ones are skipped.
            due = max(due + interval, time.monotonic())

    def _push(self, spread: float) -> None:
        address = self._options.statsd_address
        try:
            sock = _dial(address)
        except (OSError, UnicodeError):
            self._log.error("failed to create UDP socket to statsd(%s)", address)
            return
        with sock:
            self._log.info("STATSD: pushing stats to %s", address)
            lines = self._meter.lines(*self._collect())
            found = packets(lines, self._options.statsd_udp_packet_size)
            for packet in found:
                self._send(sock, packet)
                self._ending.wait(spread / len(found))

    def _send(self, sock: Any, packet: bytes) -> None:
        try:
            sock.send(packet)
        except OSError as error:
            # No statsd listens at the address, or the packet is too large. nsqd ignores both.
            self._log.debug("STATSD: %s", error)


def _dial(address: str) -> Any:
    """Return a UDP socket that sends to host:port. OSError, UnicodeError."""
    host, _, port = address.rpartition(":")
    if port.isascii() and port.isdigit() and int(port) > 65535:
        # The resolver would take the port modulo 65536.
        raise OSError(f"address {port}: invalid port")
    host = host.removeprefix("[").removesuffix("]") or "localhost"
    with gevent.Timeout(_DIAL_TIMEOUT, TimeoutError("timed out")):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock
