"""New messages of a topic as server-sent events for a page, over a channel of its own.

Knows Readers, and the nsqds that may be watched. static/watch.js shows the messages.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gnsqsync import ConnectionOptions, Message, Observer, Reader, envelope
from gnsqsync.addresses import Address, parse_address
from gnsqsync.admin.access import Access
from gnsqsync.admin.cluster import AllFailed, Cluster
from gnsqsync.admin.overview import Overview
from gnsqsync.admin.turns import on_greenlets
from gnsqsync.admin.upstream import failures
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.daemon.web import Answer, HTTPFault, Request, Response, Route
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.stats import counted

__all__ = ["Watches", "decoded", "is_raw"]

_CHANNEL = "nsqadmin-watch-"
# Upper bound of watches in one process, on greenlets and on threads. On threads a watch occupies
# a thread of the web server, which may have only two.
_MOST_WATCHES = 20
_MOST_ON_THREADS = 1
# The Readers of all watches of this process. Single operations on a set are atomic.
_watching: set[Reader] = set()
# Upper bound of unanswered messages, upper bound of messages shown in an interval, and seconds of
# an interval.
_IN_FLIGHT = 100
_MOST_SHOWN = 10
_INTERVAL = 0.5
# Seconds for which one batch waits for messages.
_WAIT = 0.1
# Messages a second. For a busier topic nsqd sends a sample of about this rate.
_SAMPLE = 500
# Seconds between two checks of the nsqds that may be watched.
_LOOK = 2.0
_ONE_AT_A_TIME = (
    "This web server has one thread, and a watch would keep it. Serve nsqadmin by itself:"
    " gnsqsync nsqadmin."
)
# Upper bound of a shown body in bytes, and of its headers in characters.
_MOST_OF_BODY = 4096


def is_raw(request: Request) -> bool:
    """Return True if a page asks for nsqd's bytes, with the envelope of headers."""
    return request.get("raw") == "1"


class Watches:
    """The watches of one nsqadmin.

    Threads:
        A watch runs on the web server's thread that sends the answer.
    """

    def __init__(self, cluster: Cluster, overview: Overview, access: Access, log: Log) -> None:
        self._cluster = cluster
        self._overview = overview
        self._access = access
        self._log = log
        # Guards the two fields below.
        self._lock = threading.Lock()
        # The Readers of this nsqadmin's watches.
        self._readers: set[Reader] = set()
        # True after ``close``: no further watch begins.
        self._is_closed = False

    def routes(self) -> list[Route]:
        """Return the routes, with paths below the base path."""
        return [("GET", "/watch/:topic/events", self._events)]

    def close(self) -> None:
        """End all watches. Each ends soon, on its own thread."""
        with self._lock:
            self._is_closed = True
            readers = list(self._readers)
        for reader in readers:
            reader.stop()

    def _events(self, request: Request) -> Answer:
        (topic,) = request.path_values
        # A watch creates a channel, so it needs the rights of an action.
        why = self._access.to_act(request.environ) or self._access.to_post(request.environ)
        if why:
            raise HTTPFault(403, "FORBIDDEN")
        if not valid_name(topic.encode("latin-1")):
            raise HTTPFault(400, "INVALID_TOPIC")
        headers = [("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]
        stream = self._watch(topic, is_raw(request), _most_watches(request.environ))
        return Response(
            b"", 200, "text/event-stream; charset=utf-8", headers, plain=True, stream=stream
        )

    def _watch(self, topic: str, raw: bool, most: int) -> Iterator[bytes]:
        if not most:
            yield _event("end", _ONE_AT_A_TIME)
            return
        nsqds, refused = self._nsqds(topic)
        if not nsqds:
            yield _event("end", "\n".join(refused) or "No nsqd has this topic.")
            return
        sample = self._sample(topic)
        events = _Events(refused)
        reader = Reader(
            topic,
            f"{_CHANNEL}{secrets.token_hex(4)}#ephemeral",
            nsqd_tcp_addresses=sorted(nsqds),
            max_in_flight=_IN_FLIGHT,
            # The watch must give up no message.
            max_attempts=0,
            observer=events,
            options=ConnectionOptions(sample_rate=0 if sample == 100 else sample),
        )
        events.reader = reader
        why = self._enter(reader, most)
        if why:
            yield _event("end", why)
            return
        self._log.info("watch of topic %s on %s begins", topic, counted(len(nsqds), "nsqd"))
        try:
            with reader:
                yield from self._messages(topic, reader, events, nsqds, sample, raw)
            yield _event("end", "This nsqadmin ends.")
        except NSQError as error:  # No nsqd accepts the connection.
            yield _event("end", str(error))
        finally:
            _watching.discard(reader)
            with self._lock:
                self._readers.discard(reader)
            self._log.info("watch of topic %s ends", topic)

    def _messages(
        self,
        topic: str,
        reader: Reader,
        events: _Events,
        nsqds: set[str],
        sample: int,
        raw: bool,
    ) -> Iterator[bytes]:
        began = time.monotonic()
        tick, look = began + _INTERVAL, began + _LOOK
        shown: list[dict[str, Any]] = []
        passed = 0
        has_begun = False
        for batch in reader.batches(_IN_FLIGHT // len(nsqds) or 1, _WAIT, _WAIT / 2):
            for message in batch:
                if len(shown) < _MOST_SHOWN:
                    shown.append(_shown(message, raw))
                else:
                    passed += 1
            reader.finish(batch)
            now = time.monotonic()
            if (
                not has_begun
                and events.connected_to
                and (events.connected_to >= nsqds or now >= tick)
            ):
                # The watch misses no message any more.
                has_begun = True
                yield _event("began", {"sample": sample})
            if now < tick:
                continue
            tick = now + _INTERVAL
            # An event goes out even without messages, because only a write finds a closed page.
            yield _event("messages", {"messages": shown, "passed": passed})
            shown, passed = [], 0
            for line in events.notices():
                yield _event("notice", line)
            if now >= look:
                look = now + _LOOK
                ended = self._follow(topic, reader, nsqds)
                if ended:
                    yield _event("end", ended)
                    return

    def _follow(self, topic: str, reader: Reader, nsqds: set[str]) -> str:
        """Watch the nsqds that may be watched now. Return why the watch ends, or ""."""
        wanted, refused = self._nsqds(topic)
        for address in nsqds - wanted:
            reader.remove_nsqd(address)
        for address in wanted:
            # This also connects again to an nsqd that was lost, because it has the topic.
            reader.add_nsqd(address)
        nsqds.clear()
        nsqds |= wanted
        return "" if wanted else "\n".join(refused) or "No nsqd has this topic any more."

    def _nsqds(self, topic: str) -> tuple[set[str], list[str]]:
        """Return the TCP addresses of nsqds that may be watched, and why others may not."""
        try:
            nodes, errors = self._cluster.having(topic)
            stats, stages = self._cluster.topic(topic)
        except AllFailed as error:
            return set(), [] if error.is_missing else str(error).splitlines()
        refused = failures([*errors, *(line for stage in stages for line in stage)])
        # A topic keeps its messages until its first channel, and the watch's channel would take
        # them.
        kept = {
            node["node"]
            for node in stats["nodes"] or ()
            if not _has_channels(node["channels"] or ())
        }
        found = set()
        for node in nodes:
            http = str(Address(node["broadcast_address"], node["http_port"]))
            if http in kept:
                refused.append(
                    f"{http} is not watched: the topic has no channel there, so its messages wait"
                    " for the first one"
                )
                continue
            try:
                found.add(
                    str(parse_address(str(Address(node["broadcast_address"], node["tcp_port"]))))
                )
            except ConfigError as error:
                refused.append(str(error))
        return found, refused

    def _sample(self, topic: str) -> int:
        """Return the percent of the messages that nsqd shall send."""
        row = self._overview.picture(0.0).topic(topic)
        rate = row.incoming if row else 0.0
        return 100 if rate <= _SAMPLE else max(1, int(100 * _SAMPLE / rate))

    def _enter(self, reader: Reader, most: int) -> str:
        """Register a watch. Return "", or why it may not begin: ``most`` is the limit."""
        _watching.add(reader)
        if len(_watching) > most:
            _watching.discard(reader)
            pages = "A page watches" if most == 1 else f"{most} pages watch"
            return f"{pages} already. Close {'it' if most == 1 else 'one of them'} first."
        with self._lock:
            if self._is_closed:
                _watching.discard(reader)
                return "This nsqadmin ends."
            self._readers.add(reader)
            return ""


class _Events(Observer):
    """The connected nsqds, and lines for people with the reason why others are not connected.

    A lost nsqd is not dialled again, because a SUB would create a deleted topic anew.
    """

    def __init__(self, lines: list[str]) -> None:
        self.reader: Reader | None = None
        self.connected_to: set[str] = set()
        self._lines = lines

    def connected(self, nsqd_address: str) -> None:
        """Note the nsqd. Called on a reading thread."""
        self.connected_to.add(nsqd_address)

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """Forget the nsqd and note the reason. Called on a reading thread."""
        if self.reader is not None:
            self.reader.remove_nsqd(nsqd_address)
        # The append here and the swap in notices() are atomic, so they need no lock.
        self._lines.append(f"{nsqd_address}: {reason}")

    def notices(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


def _most_watches(environ: Mapping[str, Any]) -> int:
    """Return the limit of watches in this process, which leaves threads for other requests."""
    if on_greenlets():
        return _MOST_WATCHES
    return _MOST_ON_THREADS if environ.get("wsgi.multithread", True) else 0


def _has_channels(channels: Iterable[dict[str, Any]]) -> bool:
    return any(not each["channel_name"].startswith(_CHANNEL) for each in channels)


def _event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _shown(message: Message, raw: bool) -> dict[str, Any]:
    headers, body = (not raw and envelope.opened(message.body)) or ({}, message.body)
    is_whole = len(body) <= _MOST_OF_BODY
    kind, text = decoded(body[:_MOST_OF_BODY], is_whole=is_whole)
    lines = "\n".join(f"{name}: {_one_line(value)}" for name, value in headers.items())
    return {
        "id": message.id,
        "at": message.timestamp // 1_000_000,
        "attempts": message.attempts,
        "nsqd": message.nsqd_address,
        "size": len(body),
        "kind": kind,
        "headers": lines[:_MOST_OF_BODY],
        "text": text,
        "is_cut": not is_whole or len(lines) > _MOST_OF_BODY,
    }


def _one_line(value: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)


def decoded(body: bytes, *, is_whole: bool = True) -> tuple[str, str]:
    """Return ``("json" | "text" | "hex", text)`` for a body, or for its first bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(body) - 3:
            return "hex", _dump(body)
        # The cut is within a character.
        text = body[: error.start].decode()
    if any(not character.isprintable() and character not in "\t\r\n" for character in text):
        return "hex", _dump(body)
    if is_whole and text.lstrip()[:1] in ("{", "["):
        try:
            return "json", json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return "text", text
    return "text", text


def _dump(body: bytes) -> str:
    """Return lines of sixteen bytes, in hex and in ASCII."""
    lines = []
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {seen}")
    return "\n".join(lines)
