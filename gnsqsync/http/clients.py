"""HTTP APIs of nsqd and nsqlookupd: one method per endpoint (docs/protocol/nsqd-http and
docs/protocol/nsqlookupd#lookupd-http).

Knows parameters and answers. Sessions and timeouts are in transport.py, envelopes in envelopes.py,
the shapes of JSON in nsqd_types.py and lookupd_types.py.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import Any, Unpack

from gnsqsync.addresses import NSQD_HTTP_PORT, NSQLOOKUPD_HTTP_PORT, NsqdAddress
from gnsqsync.errors import ConfigError, HTTPError
from gnsqsync.http.envelopes import payload
from gnsqsync.http.lookupd_types import (
    LookupdInfo,
    LookupResult,
    Node,
    Producer,
    Registration,
    parse_names,
    parse_nodes,
    parse_registrations,
)
from gnsqsync.http.nsqd_types import (
    ChannelStats,
    ClientStats,
    Latency,
    MemoryStats,
    NsqdInfo,
    Stats,
    TopicStats,
)
from gnsqsync.http.transport import Answer, HTTPClient, HTTPKeywords
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_body, check_channel, check_duration, check_int, check_topic
from gnsqsync.runtime.troubles import more, troubles

__all__ = [
    "ChannelStats",
    "ClientStats",
    "Latency",
    "LookupResult",
    "LookupdHTTP",
    "LookupdInfo",
    "MemoryStats",
    "Node",
    "NsqdHTTP",
    "NsqdInfo",
    "Producer",
    "Registration",
    "Stats",
    "TopicStats",
]

log: logging.Logger = logging.getLogger("gnsqsync.http")

_OPTION = re.compile(r"[a-z0-9_]+")
# Upper bound of remembered texts, because a server may send new nonsense each time.
_MAX_SKIPPED = 1000
_PROFILES = ("", "block", "cmdline", "goroutine", "heap", "threadcreate")


def _topic_params(topic: object) -> dict[str, str]:
    return {"topic": check_topic(topic)}


def _channel_params(topic: object, channel: object) -> dict[str, str]:
    return {"topic": check_topic(topic), "channel": check_channel(channel)}


class NsqdHTTP(HTTPClient):
    """nsqd's HTTP API, with a method for each endpoint.

    Args:
        address: ``host``, ``host:port`` (4151 without a port), an http(s) URL, whose path, query
            and user info are kept, or ``unix:///path``.
        timeout: Seconds, 0.001 or more, that nsqd may be silent. Dial, redirects and the whole
            answer together may take ten times that.
        max_msg_size: Bytes of a message; equal to nsqd's flag.
        max_body_size: Bytes of an MPUB; equal to nsqd's flag.
        connect_timeout: Seconds, 0.001 or more, for the dial.
        authorization: A bearer token. None means no token.
        session: Your own ``requests.Session``; it is not closed. None: sessions of its own.
        trust_env: If True, proxy variables and .netrc count.
        tls_ca_file: PEM path, for https. None means the bundle of ``SSL_CERT_FILE``,
            ``REQUESTS_CA_BUNDLE`` or ``CURL_CA_BUNDLE``, or else that of certifi.
        tls_cert_file: PEM path of a client certificate, for https. None means no certificate.
        tls_key_file: PEM path of its key, for https. None: the key is in ``tls_cert_file``.
        tls_verify: If True, check the certificate.
        runtime: None: the request runs on the calling thread. ``'gevent'``: if sockets are not
            patched, it runs in gevent's pool of native threads.

    Raises:
        ConfigError: A value is not allowed. Methods raise it for a name or size that nsqd would
            refuse.
        ConnectionLost: By each method: nsqd could not be reached, or did not answer in time.
        HTTPError: By each method: nsqd refused; ``code`` is its word, such as ``TOPIC_NOT_FOUND``.
        ProtocolError: By each method: the answer is not one of nsqd's.
        ClosedError: By each method after ``close()``.

    Threads:
        Any thread may call every method. The request runs on the calling thread, unless ``runtime``
        says otherwise.
    """

    default_port = NSQD_HTTP_PORT
    _port_hint = (
        "this may be nsqd's TCP port (4150 by default); give its HTTP port (4151 by default)"
    )
    _kind_hint = "this may be nsqlookupd; nsqd's HTTP port is 4151 by default"
    has_unix_sockets = True

    def __init__(
        self,
        address: NsqdAddress = "127.0.0.1:4151",
        *,
        timeout: float = 5.0,
        max_msg_size: int = 1048576,
        max_body_size: int = 5242880,
        **options: Unpack[HTTPKeywords],
    ) -> None:
        super().__init__(address, timeout=timeout, **options)
        self._max_msg_size = check_int("max_msg_size", max_msg_size, 1, unit=" bytes")
        self._max_body_size = check_int("max_body_size", max_body_size, 1, unit=" bytes")

    def ping(self) -> str:
        """Return ``OK`` if nsqd is healthy.

        Raises:
            HTTPError: 500 ``NOK - <last disk error>``: nsqd is not healthy.
        """
        return self._get_text("/ping")

    def info(self) -> NsqdInfo:
        """Return version, addresses and limits."""
        return NsqdInfo.parse(self._get_json("/info"))

    @checks_names
    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> Stats:
        """Return counters of all topics, or of one topic or channel; no topics for an unknown one.

        Args:
            topic: Only this topic; None means all.
            channel: Only this channel, of each topic that has it; None means all.
            include_clients: If True, list clients and producers.
            include_mem: If True, show nsqd's memory.

        Returns:
            The counters of this moment.
        """
        params = self._stats_params(topic, channel, include_clients, include_mem)
        left_out: list[str] = []
        found = Stats.parse(self._get_json("/stats", {"format": "json", **params}), left_out.append)
        self._tell(left_out)
        return found

    def _tell(self, left_out: list[str]) -> None:
        """Log the first entry that could not be read, at growing intervals."""
        place = (self.url, "entries")
        if not left_out:
            troubles().ended(place)
            return
        tell = troubles().began(place, "left out")
        if tell is not None:
            others = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
            log.error("%s/stats: %s%s%s", self.url, left_out[0], others, more(tell))

    @checks_names
    def stats_text(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> str:
        """Return the same as nsqd's page of text.

        Args:
            topic: As in ``stats()``.
            channel: As in ``stats()``.
            include_clients: As in ``stats()``.
            include_mem: As in ``stats()``.
        """
        params = self._stats_params(topic, channel, include_clients, include_mem)
        return self._get_text("/stats", params)

    @staticmethod
    def _stats_params(
        topic: str | None, channel: str | None, include_clients: bool, include_mem: bool
    ) -> dict[str, str]:
        params = {
            "include_clients": "true" if include_clients else "false",
            "include_mem": "true" if include_mem else "false",
        }
        if topic is not None:
            params["topic"] = check_topic(topic)
        if channel is not None:
            params["channel"] = check_channel(channel)
        return params

    @checks_names
    def pub(self, topic: str, body: bytes | str, *, defer: float | None = None) -> None:
        """Publish one message.

        After a ConnectionLost nsqd may or may not have it.

        Args:
            topic: Name of the topic, which nsqd creates if need be.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            defer: Seconds that nsqd holds it back, in whole milliseconds; None: not at all.
        """
        params = _topic_params(topic)
        data = check_body(body, self._max_msg_size)
        if defer is not None:
            # nsqd's limit is --max-req-timeout, an hour by default; above it nsqd answers
            # INVALID_DEFER.
            params["defer"] = str(round(check_duration("defer", defer, finite=True) * 1000))
        self._post("/pub", params, data)

    @checks_names
    def mpub(self, topic: str, bodies: Iterable[bytes | str]) -> None:
        """Publish several messages in one request, all or none of them, always as binary.

        nsqd's text form would split a body with a newline, and drop an empty line.

        Args:
            topic: Name of the topic, which nsqd creates if need be.
            bodies: The messages, as in ``pub()``; one or more.

        Raises:
            ConfigError: ``bodies`` is empty or a single body, or the messages together are larger
                than ``max_body_size``.
        """
        params = {**_topic_params(topic), "binary": "true"}
        if isinstance(bodies, (str, bytes, bytearray, memoryview)):
            raise ConfigError("bodies is one body; give a list of them, or call pub()")
        parts: list[bytes] = []
        for number, body in enumerate(bodies):
            data = check_body(body, self._max_msg_size, f"body {number}")
            parts.append(len(data).to_bytes(4, "big") + data)
        if not parts:
            raise ConfigError("bodies is empty; mpub() needs at least one message")
        payload = len(parts).to_bytes(4, "big") + b"".join(parts)
        if len(payload) > self._max_body_size:
            raise ConfigError(
                f"{len(parts)} messages have {len(payload)} bytes together; max_body_size allows"
                f" {self._max_body_size} (send fewer at a time)"
            )
        self._post("/mpub", params, payload)

    def create_topic(self, topic: str) -> None:
        """Create a topic. An existing topic is left as it is.

        Args:
            topic: Name of the topic.
        """
        self._post("/topic/create", _topic_params(topic))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and messages.

        Args:
            topic: Name of the topic.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND``: the topic does not exist.
        """
        self._post("/topic/delete", _topic_params(topic))

    def empty_topic(self, topic: str) -> None:
        """Throw away the messages that wait in the topic itself. Channels keep their messages.

        Args:
            topic: Name of the topic.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND``: the topic does not exist.
        """
        self._post("/topic/empty", _topic_params(topic))

    def pause_topic(self, topic: str) -> None:
        """Stop the flow from the topic into its channels.

        Args:
            topic: Name of the topic.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND``: the topic does not exist.
        """
        self._post("/topic/pause", _topic_params(topic))

    def unpause_topic(self, topic: str) -> None:
        """Let messages flow from the topic into its channels again, after ``pause_topic()``.

        Args:
            topic: Name of the topic.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND``: the topic does not exist.
        """
        self._post("/topic/unpause", _topic_params(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel. An existing channel is left as it is.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND``: the topic does not exist.
        """
        self._post("/channel/create", _channel_params(topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages. Its consumers are disconnected.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND`` or ``CHANNEL_NOT_FOUND``: nsqd does not have it.
        """
        self._post("/channel/delete", _channel_params(topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        """Throw away the messages of a channel, with those in flight.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND`` or ``CHANNEL_NOT_FOUND``: nsqd does not have it.
        """
        self._post("/channel/empty", _channel_params(topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        """Stop deliveries from a channel, which still collects messages.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND`` or ``CHANNEL_NOT_FOUND``: nsqd does not have it.
        """
        self._post("/channel/pause", _channel_params(topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        """Deliver from a channel again, after ``pause_channel()``.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND`` or ``CHANNEL_NOT_FOUND``: nsqd does not have it.
        """
        self._post("/channel/unpause", _channel_params(topic, channel))

    def get_config(self, option: str) -> Any:
        """Return the value of an nsqd option.

        Args:
            option: Name in the config file, such as ``max_msg_size``.

        Returns:
            A str, or parsed JSON; durations in nanoseconds, as sent.

        Raises:
            HTTPError: 400 ``INVALID_OPTION``: nsqd does not know the option.
        """
        return self._config_value(self._request("GET", self._config_path(option)))

    def set_config(self, option: str, value: Any) -> Any:
        """Change ``log_level`` or ``nsqlookupd_tcp_addresses``, the only options that nsqd changes.

        Args:
            option: Name of one of the two.
            value: A str for the first, a list of ``host:port`` for the second.

        Returns:
            The new value, as from ``get_config()``.
        """
        body = value if isinstance(value, str) else json.dumps(value)
        path = self._config_path(option)
        return self._config_value(self._request("PUT", path, body=body.encode()))

    @staticmethod
    def _config_path(option: object) -> str:
        if not isinstance(option, str) or _OPTION.fullmatch(option) is None:
            raise ConfigError(f"option is {option!r}; it must be a config name like 'log_level'")
        return f"/config/{option}"

    @staticmethod
    def _config_value(answer: Answer) -> Any:
        if answer.content_type.startswith("application/json"):
            return payload(answer.content, answer.url)
        return answer.content.decode("utf-8", "replace")

    def pprof(self, profile: str = "goroutine") -> str:
        """Return one of Go's profiles as text.

        The binary profiles (CPU, trace) are for ``go tool pprof``.

        Args:
            profile: ``goroutine``, ``heap``, ``block``, ``threadcreate``, ``cmdline``, or "" for
                the list.

        Raises:
            ConfigError: ``profile`` is not the name of a profile.
        """
        if profile not in _PROFILES:
            raise ConfigError(f"profile is {profile!r}; allowed are {', '.join(_PROFILES[1:])}")
        return self._get_text(f"/debug/pprof/{profile}", {"debug": "1"})

    def set_block_rate(self, rate: int) -> None:
        """Set the rate of Go's block profile.

        Args:
            rate: Nanoseconds; 0 switches it off.
        """
        params = {"rate": str(check_int("rate", rate, 0, unit=" ns"))}
        self._despite_500("PUT", "/debug/setblockrate", params)

    def free_memory(self) -> None:
        """Make Go's garbage collector run and return memory to the system."""
        self._despite_500("POST", "/debug/freememory", {})

    def _despite_500(self, method: str, path: str, params: dict[str, str]) -> None:
        """Send a request that nsqd 1.3.0 carries out and then answers with 500
        (docs/protocol/nsqd-http#endpoints)."""
        try:
            self._request(method, path, params)
        except HTTPError as error:
            if error.status != 500 or error.code != "INTERNAL_ERROR":
                raise


class LookupdHTTP(HTTPClient):
    """nsqlookupd's HTTP API, with a method for each endpoint.

    Args:
        address: As in NsqdHTTP; 4161 without a port.
        timeout: Seconds; as in NsqdHTTP.
        connect_timeout: Seconds; as in NsqdHTTP.
        authorization: As in NsqdHTTP.
        session: As in NsqdHTTP.
        trust_env: As in NsqdHTTP.
        tls_ca_file: As in NsqdHTTP.
        tls_cert_file: As in NsqdHTTP.
        tls_key_file: As in NsqdHTTP.
        tls_verify: As in NsqdHTTP.
        runtime: As in NsqdHTTP.

    Raises:
        ConfigError: A value is not allowed. Methods raise the errors of NsqdHTTP's methods.

    Threads:
        As in NsqdHTTP: any thread may call every method.
    """

    default_port = NSQLOOKUPD_HTTP_PORT
    _port_hint = (
        "this may be nsqlookupd's TCP port (4160 by default); give its HTTP port (4161 by default)"
    )
    _kind_hint = "this may be nsqd; nsqlookupd's HTTP port is 4161 by default"

    def __init__(
        self,
        address: NsqdAddress = "127.0.0.1:4161",
        *,
        timeout: float = 2.0,
        **options: Unpack[HTTPKeywords],
    ) -> None:
        super().__init__(address, timeout=timeout, **options)
        # Texts about entries that were left out and logged; a poll would log them each time.
        self._skipped: set[str] = set()

    def _skip(self, text: str) -> None:
        known = text in self._skipped or len(self._skipped) >= _MAX_SKIPPED
        if not known:
            self._skipped.add(text)
        log.log(logging.DEBUG if known else logging.WARNING, "%s: %s", self.url, text)

    def ping(self) -> str:
        """Return ``OK``."""
        return self._get_text("/ping")

    def info(self) -> LookupdInfo:
        """Return the version."""
        return LookupdInfo.parse(self._get_json("/info"))

    def lookup(self, topic: str) -> LookupResult:
        """Return the nsqds that have ``topic``, and its channels.

        Args:
            topic: Name of the topic.

        Raises:
            HTTPError: 404 ``TOPIC_NOT_FOUND`` is the usual answer before the first publish.
        """
        return LookupResult.parse(self._get_json("/lookup", _topic_params(topic)), self._skip)

    def topics(self) -> tuple[str, ...]:
        """Return all topics, even those without an nsqd, in no order."""
        return parse_names(self._get_json("/topics"), "topics", self._skip)

    def channels(self, topic: str) -> tuple[str, ...]:
        """Return the channels of a topic; none for an unknown topic.

        Args:
            topic: Name of the topic.
        """
        answer = self._get_json("/channels", _topic_params(topic))
        return parse_names(answer, "channels", self._skip)

    def nodes(self) -> tuple[Node, ...]:
        """Return the live nsqds, with their topics."""
        return parse_nodes(self._get_json("/nodes"), self._skip)

    def debug(self) -> dict[str, tuple[Registration, ...]]:
        """Return the whole registration database: ``category:key:subkey`` to registrations."""
        return parse_registrations(self._get_json("/debug"))

    def create_topic(self, topic: str) -> None:
        """Register a topic without an nsqd.

        Args:
            topic: Name of the topic.
        """
        self._post("/topic/create", _topic_params(topic))

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels. nsqds that have it are not told.

        Args:
            topic: Name of the topic.
        """
        self._post("/topic/delete", _topic_params(topic))

    def tombstone_topic(self, topic: str, node: str | Producer) -> None:
        """Hide ``topic`` of one nsqd from lookups for a while (45 s unless configured).

        Args:
            topic: Name of the topic.
            node: ``broadcast_address:http_port``, or a Producer or Node of an earlier answer.

        Raises:
            ConfigError: ``node`` has another form.
        """
        name = node.http_address if isinstance(node, Producer) else node
        if not isinstance(name, str) or ":" not in name or any(c.isspace() for c in name):
            raise ConfigError(f"node is {node!r}; it must be 'broadcast_address:http_port'")
        self._post("/topic/tombstone", {**_topic_params(topic), "node": name})

    def create_channel(self, topic: str, channel: str) -> None:
        """Register a channel and its topic. nsqds create the channel when they create the topic.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.
        """
        self._post("/channel/create", _channel_params(topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        """Forget a channel. nsqds that have it are not told.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.

        Raises:
            HTTPError: 404 ``CHANNEL_NOT_FOUND``: nsqlookupd does not know the channel.
        """
        self._post("/channel/delete", _channel_params(topic, channel))
