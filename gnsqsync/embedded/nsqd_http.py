"""nsqd's HTTP API (docs/protocol/nsqd-http): publishing, topics and channels, /stats and /config.

Knows requests and answers; the broker and the server do the work.
"""

from __future__ import annotations

import gc
import json
import socket
import time
from collections.abc import Iterable
from typing import Any, Protocol

from gnsqsync.daemon.flags import NSQ_VERSION, config_names, config_value
from gnsqsync.daemon.golog import LEVELS, Log
from gnsqsync.daemon.names import go_quote, valid_name
from gnsqsync.daemon.web import (
    JSON_TYPE,
    Answer,
    HTTPFault,
    Request,
    Response,
    Route,
    to_json,
    when_whole,
)
from gnsqsync.embedded.bodies import MpubBody
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.identify import Fatal
from gnsqsync.embedded.numbers import INTEGER, parse_int64, signed64
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.queueing import DiskFailed
from gnsqsync.embedded.session import Session
from gnsqsync.embedded.stats import gather, memory_figures, render_text
from gnsqsync.embedded.topic import Topic, TopicGone

__all__ = ["Nsqd", "NsqdHandlers"]

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_CHUNK = 65536


class Nsqd(Protocol):
    """The part of NsqdServer that the API uses."""

    options: NsqdOptions
    broker: Broker
    log: Log
    started_at: float
    tcp_port: int
    http_port: int

    def sessions(self) -> Iterable[Session]:
        """Return the sessions of all connected clients."""
        ...

    def save_names(self) -> None:
        """Write topics, channels and paused flags to disk before returning."""
        ...

    def set_lookupd_addresses(self, addresses: tuple[str, ...] | None) -> None:
        """Register with these nsqlookupds from now on; None is shown as null."""
        ...


class NsqdHandlers:
    """The handlers of the HTTP API. ``routes`` goes into ``web.App``."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    @property
    def routes(self) -> list[Route]:
        return [
            ("GET", "/ping", self._ping),
            ("GET", "/info", self._info),
            ("GET", "/stats", when_whole(self._stats)),
            ("POST", "/pub", self._pub),
            ("POST", "/mpub", self._mpub),
            ("POST", "/topic/create", self._topic_create),
            ("POST", "/topic/delete", when_whole(self._topic_delete)),
            ("POST", "/topic/empty", when_whole(self._topic_empty)),
            ("POST", "/topic/pause", when_whole(lambda request: self._topic_pause(request, True))),
            (
                "POST",
                "/topic/unpause",
                when_whole(lambda request: self._topic_pause(request, False)),
            ),
            ("POST", "/channel/create", when_whole(self._channel_create)),
            ("POST", "/channel/delete", when_whole(self._channel_delete)),
            ("POST", "/channel/empty", when_whole(self._channel_empty)),
            (
                "POST",
                "/channel/pause",
                when_whole(lambda request: self._channel_pause(request, True)),
            ),
            (
                "POST",
                "/channel/unpause",
                when_whole(lambda request: self._channel_pause(request, False)),
            ),
            ("GET", "/config/:opt", self._get_config),
            ("PUT", "/config/:opt", self._put_config),
            ("POST", "/debug/freememory", self._free_memory),
            ("PUT", "/debug/setblockrate", self._set_block_rate),
        ]

    # -- looking -----------------------------------------------------------------------------------

    def _ping(self, request: Request) -> Answer:
        health = self._broker.health
        return Response(health, 200 if health == "OK" else 500, plain=True)

    def _info(self, request: Request) -> Answer:
        options = self._nsqd.options
        return {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._nsqd.http_port,
            "tcp_port": self._nsqd.tcp_port,
            "start_time": int(self._nsqd.started_at),
            "max_heartbeat_interval": round(options.max_heartbeat_interval * 1e9),
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": round(options.max_output_buffer_timeout * 1e9),
            "max_deflate_level": options.max_deflate_level,
        }

    def _stats(self, request: Request) -> Answer:
        figures = gather(
            self._broker,
            self._nsqd.sessions(),
            topic=request.get("topic") or "",
            channel=request.get("channel") or "",
            include_clients=_BOOLS.get(request.get("include_clients") or "", True),
        )
        memory = None
        if _BOOLS.get(request.get("include_mem") or "", True):
            memory = memory_figures()
        started_at = self._nsqd.started_at
        if request.get("format") != "json":
            return render_text(figures, self._broker.health, memory, started_at, time.time())
        answer: dict[str, Any] = {
            "version": NSQ_VERSION,
            "health": self._broker.health,
            "start_time": int(started_at),
            "topics": figures["topics"],
        }
        if memory is not None:
            answer["memory"] = memory
        answer["producers"] = figures["producers"]
        return answer

    # -- publishing --------------------------------------------------------------------------------

    def _pub(self, request: Request) -> Answer:
        limit = self._nsqd.options.max_msg_size
        if request.content_length > limit:
            raise HTTPFault(413, "MSG_TOO_BIG")
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HTTPFault(413, "MSG_TOO_BIG")
        if not body:
            raise HTTPFault(400, "MSG_EMPTY")
        topic = self._publish_topic(request)
        delay = 0.0
        text = request.get("defer")
        if text is not None:
            millis = parse_int64(text)
            if millis is None:
                raise HTTPFault(400, "INVALID_DEFER")
            delay = signed64(millis * 1_000_000) / 1e9
            if not 0 <= delay <= self._nsqd.options.max_req_timeout:
                raise HTTPFault(400, "INVALID_DEFER")
        return self._publish(topic, [body], delay)

    def _mpub(self, request: Request) -> Answer:
        limit = self._nsqd.options.max_body_size
        if request.content_length > limit:
            raise HTTPFault(413, "BODY_TOO_BIG")
        topic = self._publish_topic(request)
        text = request.get("binary")
        # nsqd takes any other value for true, even an empty one.
        if text is not None and _BOOLS.get(text, True):
            return self._publish(topic, self._binary_bodies(request))
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HTTPFault(413, "BODY_TOO_BIG")
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._nsqd.options.max_msg_size for line in bodies):
            raise HTTPFault(413, "MSG_TOO_BIG")
        return self._publish(topic, bodies)

    def _binary_bodies(self, request: Request) -> list[bytes]:
        options = self._nsqd.options
        reading = MpubBody(options.max_msg_size, options.max_body_size)
        data = b""
        try:
            while not reading.done:
                chunk = request.read(max(_CHUNK, reading.needs - len(data)))
                if not chunk:
                    raise reading.missing
                data += chunk
                data = data[reading.read(data, 0) :]
        except Fatal as error:
            code = error.frame.split(b" ")[0].removeprefix(b"E_").decode()
            raise HTTPFault(413, code) from None
        return reading.bodies

    def _publish_topic(self, request: Request) -> Topic:
        name = request.required("topic")
        if not valid_name(name.encode()):
            raise HTTPFault(400, "INVALID_TOPIC")
        return self._broker.topic(name)

    def _publish(self, topic: Topic, bodies: list[bytes], delay: float = 0.0) -> Answer:
        try:
            topic.publish(bodies, delay)
        except (TopicGone, DiskFailed):
            raise HTTPFault(503, "EXITING") from None
        return "OK"

    # -- topics ------------------------------------------------------------------------------------

    def _existing_topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HTTPFault(404, "TOPIC_NOT_FOUND")
        return topic

    def _topic_create(self, request: Request) -> Answer:
        self._publish_topic(request)
        return None

    def _topic_delete(self, request: Request) -> Answer:
        if not self._broker.delete_topic(request.required("topic")):
            raise HTTPFault(404, "TOPIC_NOT_FOUND")
        return None

    def _topic_empty(self, request: Request) -> Answer:
        name = request.required("topic")
        if not valid_name(name.encode()):
            raise HTTPFault(400, "INVALID_TOPIC")
        self._existing_topic(name).empty()
        return None

    def _topic_pause(self, request: Request, paused: bool) -> Answer:
        self._existing_topic(request.required("topic")).pause(paused)
        self._nsqd.save_names()
        return None

    # -- channels ----------------------------------------------------------------------------------

    def _topic_and_channel(self, request: Request) -> tuple[Topic, str]:
        topic_name = request.name("topic")
        channel_name = request.name("channel")
        return self._existing_topic(topic_name), channel_name

    def _existing_channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HTTPFault(404, "CHANNEL_NOT_FOUND")
        return channel

    def _channel_create(self, request: Request) -> Answer:
        topic, name = self._topic_and_channel(request)
        topic.channel(name)
        return None

    def _channel_delete(self, request: Request) -> Answer:
        channel = self._existing_channel(request)
        self._broker.delete_channel(channel.topic_name, channel.name)
        return None

    def _channel_empty(self, request: Request) -> Answer:
        self._existing_channel(request).empty()
        return None

    def _channel_pause(self, request: Request, paused: bool) -> Answer:
        self._existing_channel(request).pause(paused)
        self._nsqd.save_names()
        return None

    # -- configuration -----------------------------------------------------------------------------

    def _get_config(self, request: Request) -> Answer:
        return self._config_answer(request.path_values[0])

    def _config_answer(self, name: str) -> Answer:
        if name not in config_names(NsqdOptions):
            raise HTTPFault(400, "INVALID_OPTION")
        if name == "log_level":
            return LEVELS[self._nsqd.log.level]
        value: Answer = config_value(self._nsqd.options, name)
        if value is None:
            # A handler that returns None would give an empty answer instead of "null".
            return Response(to_json(None), content_type=JSON_TYPE)
        return value

    def _put_config(self, request: Request) -> Answer:
        name = request.path_values[0]
        limit = self._nsqd.options.max_msg_size
        body = request.read(limit + 1)
        if not body or len(body) > limit:
            raise HTTPFault(413, "INVALID_VALUE")
        if name == "log_level":
            level = body.decode("utf-8", "replace").lower()
            if level not in LEVELS:
                raise HTTPFault(400, "INVALID_VALUE")
            self._nsqd.log.level = level
        elif name == "nsqlookupd_tcp_addresses":
            self._nsqd.set_lookupd_addresses(_addresses(body))
        else:
            raise HTTPFault(400, "INVALID_OPTION")
        return self._config_answer(name)

    # -- debugging: nsqd does the work, then fails to write its answer, and so answers 500 ---------

    def _free_memory(self, request: Request) -> Answer:
        gc.collect()
        raise HTTPFault(500, "INTERNAL_ERROR")

    def _set_block_rate(self, request: Request) -> Answer:
        """Check the rate. Python has no profile of blocking that could use it."""
        try:
            text = request.get("rate") or ""
        except HTTPFault:
            text = ""
        if parse_int64(text) is not None:
            raise HTTPFault(500, "INTERNAL_ERROR")
        reason = "value out of range" if INTEGER.fullmatch(text) else "invalid syntax"
        quoted = go_quote(text.encode()).decode()
        answer = f"invalid block rate : strconv.Atoi: parsing {quoted}: {reason}"
        return Response(answer, 400, plain=True)


def _addresses(body: bytes) -> tuple[str, ...] | None:
    """Return the addresses in the body. Go also accepts null for the list and for a string."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPFault(400, "INVALID_VALUE") from None
    if found is None:
        return None
    if not isinstance(found, list) or not all(
        isinstance(item, (str, type(None))) for item in found
    ):
        raise HTTPFault(400, "INVALID_VALUE")
    return tuple(item or "" for item in found)
