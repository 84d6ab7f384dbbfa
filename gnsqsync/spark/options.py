"""Options of the source as users write them: text, in any case, checked before anything starts.

Knows names, units and ranges. Each error says in one sentence what to set. Knows nothing of Spark.
The client checks addresses and names.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsqsync import ConnectionOptions, NsqdHTTP, Reader
from gnsqsync.errors import ConfigError
from gnsqsync.options import https_options
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.reach import FAIL_ON

__all__ = ["Given", "SourceOptions", "connection_fields"]

_NO_OFFSETS = "NSQ has no offsets: a channel gets what is published after it was made"
_NO_KEYS = "NSQ has no partitions, keys or headers"
# Options that users know from Kafka, with the reason why NSQ cannot have them.
_FOREIGN = {
    "startingOffsets": f"{_NO_OFFSETS}; remove it",
    "startingOffsetsByTimestamp": f"{_NO_OFFSETS}; remove it",
    "startingOffsetsByTimestampStrategy": f"{_NO_OFFSETS}; remove it",
    "startingTimestamp": f"{_NO_OFFSETS}; remove it",
    "endingOffsets": f"{_NO_OFFSETS}; remove it",
    "endingOffsetsByTimestamp": f"{_NO_OFFSETS}; remove it",
    "endingTimestamp": f"{_NO_OFFSETS}; remove it",
    "assign": f"{_NO_KEYS}; name the topics with 'subscribe'",
    "subscribePattern": "NSQ's lookup is by name; list the topics with 'subscribe'",
    "includeHeaders": f"{_NO_KEYS}; put them into the body",
    "groupIdPrefix": "NSQ's consumer groups are channels; set 'channel'",
    "maxRecordsPerPartition": "set 'minPartitions' or 'maxMessagesPerTrigger'",
    "path": "NSQ has no path; set 'subscribe' to the topic and call load() without one",
}
_KAFKA = {
    "kafka.bootstrap.servers": "set 'nsqdTcpAddresses' or 'lookupdHttpAddresses'",
    "kafka.group.id": "NSQ's consumer groups are channels; set 'channel'",
}
# Fields of ConnectionOptions that must not be set as nsq.*, with the right way.
_NOT_PASSED = {
    "msg_timeout": "set 'msgTimeoutMs'",
    "sample_rate": "nsqd would throw messages away; sample the DataFrame",
}
_NO_TABLE = (
    "a topic is no table, and a table passes no options on: write CREATE TEMPORARY VIEW"
    " name USING nsq OPTIONS (...) in place of CREATE TABLE"
)
_FOREIGN_BY_LOWER = {name.lower(): name for name in _FOREIGN}
_FIELDS = {field.name: field for field in dataclasses.fields(ConnectionOptions)}
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Given:
    """The options that a user gave to a source or a sink. Each ``take`` marks a name as known.

    ``options``: the options from Spark, with names in any case. ``also``: names with a meaning to
    Spark itself. ``finish()`` refuses the options that were not taken. All methods raise
    ConfigError. The constructor raises it for options of a table, which Spark makes without asking
    us.
    """

    def __init__(self, options: Mapping[str, str], what: str, also: Iterable[str] = ()) -> None:
        self._left = {name.lower(): str(value) for name, value in options.items()}
        self._typed = {name.lower(): name for name in options}
        # True if Spark has turned all names into lower case. Users do not find such names in their
        # code, so errors say it.
        self._lowered = all(name.islower() for name in options)
        self._what = what
        self._known: list[str] = []
        # Spark puts "option." before the options of CREATE TABLE when it asks for the columns.
        # Later, when a query names the table, Spark passes no options at all.
        if any(name.startswith("option.") for name in self._left):
            raise ConfigError(_NO_TABLE)
        if not self._left:
            raise ConfigError(f"the NSQ {what} got no options at all; {_NO_TABLE}")
        for name in also:
            self._left.pop(name.lower(), None)

    def take(self, name: str, *aliases: str) -> str | None:
        """Return the text of an option, None if it is absent or empty."""
        found: dict[str, str] = {}
        for spelling in (name, *aliases):
            self._known.append(spelling)
            text = self._left.pop(spelling.lower(), "").strip()
            if text:
                found[spelling] = text
        if len(set(found.values())) > 1:
            raise ConfigError(
                f"options {' and '.join(map(repr, found))} mean the same; set one of them"
            )
        return next(iter(found.values()), None)

    def need(self, name: str, why: str, *aliases: str) -> str:
        text = self.take(name, *aliases)
        if text is None:
            raise ConfigError(f"option {name!r} is missing: {why}")
        return text

    def names(self, name: str, *aliases: str) -> tuple[str, ...]:
        """Return the parts of a list with commas; empty if the option is absent."""
        text = self.take(name, *aliases) or ""
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))

    def integer(self, name: str, default: int | None, low: int, *aliases: str) -> int | None:
        text = self.take(name, *aliases)
        return default if text is None else _integer(name, text, low)

    def count(self, name: str, default: int, low: int = 1) -> int:
        text = self.take(name)
        return default if text is None else _integer(name, text, low)

    def seconds(self, name: str, default_ms: int, low_ms: int = 0) -> float:
        """Return an option in whole milliseconds as seconds."""
        return self.count(name, default_ms, low_ms) / 1000

    def duration(self, name: str, default: float) -> float:
        """Return an option like ``90s`` or ``15m`` as seconds."""
        text = self.take(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(f"option {name!r} is {text!r}; write a time like 30s, 15m or 1h")
        return float(match[1]) * _UNITS[match[2]]

    def flag(self, name: str, default: bool) -> bool:
        text = self.take(name)
        return default if text is None else _flag(name, text)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return an option that must be one of ``allowed``, in lower case; empty if absent."""
        text = (self.take(name) or "").lower()
        if text and text not in allowed:
            raise ConfigError(f"option {name!r} is {text!r}; allowed are {', '.join(allowed)}")
        return text

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an option that is a JSON object; empty if absent."""
        text = self.take(name)
        return {} if text is None else _mapping(name, text)

    def connection(self) -> dict[str, Any]:
        """Return all ``nsq.*`` options as fields of ConnectionOptions, with their types."""
        names = [name for name in self._left if name.startswith("nsq.")]
        return connection_fields({self._typed[name][4:]: self._left.pop(name) for name in names})

    def finish(self) -> None:
        """Raise ConfigError if an option is left that nobody took. The error explains the first."""
        for name in sorted(self._left):
            typed = self._typed[name]
            if name in _FOREIGN_BY_LOWER:
                foreign = _FOREIGN_BY_LOWER[name]
                raise ConfigError(f"option {foreign!r} is not possible: {_FOREIGN[foreign]}")
            if name.startswith("kafka."):
                instead = _KAFKA.get(name, "options of the NSQ client begin with 'nsq.'")
                raise ConfigError(f"option {typed!r} is Kafka's: {instead}")
            by_lower = {known.lower(): known for known in self._known}
            close = difflib.get_close_matches(name, by_lower, 1, 0.6)
            hint = f"; did you mean {by_lower[close[0]]!r}?" if close else ""
            case = " (Spark passes names on in lower case)" if self._lowered else ""
            raise ConfigError(f"the NSQ {self._what} has no option {typed!r}{case}{hint}")


def connection_fields(given: Mapping[str, str]) -> dict[str, Any]:
    """Return texts as values of ConnectionOptions' fields. Names may have any case.

    Raises ConfigError for an unknown name, and for a text of a wrong type.
    """
    values: dict[str, Any] = {}
    for typed, text in given.items():
        name, option = typed.lower(), f"nsq.{typed}"
        if name in _NOT_PASSED:
            raise ConfigError(f"option {option!r} is not possible: {_NOT_PASSED[name]}")
        if name not in _FIELDS:
            close = difflib.get_close_matches(name, _FIELDS, 1, 0.6)
            hint = f"; did you mean 'nsq.{close[0]}'?" if close else ""
            raise ConfigError(f"the NSQ client has no option {option!r}{hint}")
        values[name] = _typed(option, str(_FIELDS[name].type), text.strip())
    return values


def _typed(option: str, kind: str, text: str) -> Any:
    if kind.startswith("bool"):
        return _flag(option, text)
    if kind == "int":
        return _integer(option, text, None)
    if kind.startswith("Mapping"):
        return _mapping(option, text)
    if kind.startswith("float"):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"option {option!r} is {text!r}; it must be a number of seconds"
            ) from None
    return text


def _integer(name: str, text: str, low: int | None) -> int:
    if re.fullmatch(r"[+-]?\d+", text) is None:
        raise ConfigError(f"option {name!r} is {text!r}; it must be a whole number")
    if low is not None and int(text) < low:
        raise ConfigError(f"option {name!r} is {text}; allowed is {low} or more")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"option {name!r} is {text!r}; it must be true or false")
    return text.lower() in _TRUE


def _mapping(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {name!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'option {name!r} is {text!r}; it must be a JSON object like {{"a": 1}}')
    return value


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of ``format("nsq")`` for reading, checked. Durations are seconds, sizes bytes.

    ``nsqds``: (TCP address, HTTP address) of each nsqd that was named; the TCP address is empty if
    only the HTTP address was given. ``fail_on_unreachable``: one of FAIL_ON, or empty if not set.
    ``available_now``: None if not set. ``connection``: fields of ConnectionOptions, picklable.
    """

    topics: tuple[str, ...]
    channel: str
    nsqds: tuple[tuple[str, str], ...]
    lookupds: tuple[str, ...]
    lookupd_authorization: str | None = field(repr=False)
    wal_path: str
    wal_options: dict[str, Any] = field(repr=False)
    max_messages: int | None
    min_messages: int
    max_trigger_delay: float
    min_partitions: int
    max_in_flight: int
    segment_bytes: int
    max_bytes_in_memory: int
    poll_timeout: float
    poll_interval: float
    lookupd_poll_interval: float
    msg_timeout: float
    retention: float
    deduplicate: bool
    fail_on_data_loss: bool
    fail_on_unreachable: str
    available_now: bool | None
    connection: dict[str, Any] = field(repr=False)
    drain_id: str
    peek: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
        """Check the options and return them. Raises ConfigError with one sentence.

        ``streaming``: True for readStream, False for read, None if that is not known yet.
        """
        given = Given(options, "source")
        topics = given.names("subscribe", "topic")
        if not topics:
            raise ConfigError("option 'subscribe' is missing: set it to the topic, or to several")
        channel = given.need(
            "channel", "set it to a channel that no other query or consumer reads from"
        )
        if channel.endswith("#ephemeral"):
            raise ConfigError(
                f"option 'channel' is {channel!r}: an ephemeral channel vanishes between batches"
                " and its messages with it; set a name without #ephemeral"
            )
        peek = given.flag("peek", False)
        wal_path = given.take("walPath") or ""
        msg_timeout = given.seconds("msgTimeoutMs", 15000, 1000)
        found = cls(
            topics=topics,
            channel=channel,
            nsqds=_nsqds(given),
            lookupds=given.names("lookupdHttpAddresses"),
            lookupd_authorization=given.take("lookupdAuthorization"),
            wal_path=wal_path,
            wal_options=given.mapping("walOptions"),
            max_messages=given.integer("maxMessagesPerTrigger", None, 1, "maxOffsetsPerTrigger"),
            min_messages=given.integer("minMessagesPerTrigger", 0, 0, "minOffsetsPerTrigger") or 0,
            max_trigger_delay=given.duration("maxTriggerDelay", 900.0),
            min_partitions=given.count("minPartitions", 1),
            max_in_flight=given.count("maxInFlight", 2500),
            segment_bytes=given.count("segmentBytes", 16 << 20),
            max_bytes_in_memory=given.count("maxBytesInMemory", 64 << 20),
            poll_timeout=given.seconds("pollTimeoutMs", 1000, 1),
            poll_interval=given.seconds("pollIntervalMs", 200, 10),
            lookupd_poll_interval=given.seconds("lookupdPollIntervalMs", 15000, 100),
            msg_timeout=msg_timeout,
            retention=given.seconds("walRetentionMs", max(60000, round(2000 * msg_timeout))),
            deduplicate=given.flag("deduplicate", True),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            fail_on_unreachable=given.choice("failOnUnreachable", FAIL_ON),
            available_now={"": None, "true": True, "false": False}[
                given.choice("availableNow", ("true", "false"))
            ],
            connection=given.connection(),
            drain_id=given.take("drainId") or "",
            peek=peek,
        )
        given.finish()
        found._check(streaming)
        return found

    def _check(self, streaming: bool | None) -> None:
        if not self.nsqds and not self.lookupds:
            raise ConfigError(
                "option 'lookupdHttpAddresses' is missing: set it to the nsqlookupds, or"
                " 'nsqdTcpAddresses' to the nsqds"
            )
        if self.nsqds and self.lookupds:
            raise ConfigError(
                "options 'lookupdHttpAddresses' and 'nsqdTcpAddresses' are both set; set one of"
                " them: nsqlookupd names all nsqds that have the topic"
            )
        self._check_log(streaming)
        if self.max_messages is not None and self.min_messages > self.max_messages:
            raise ConfigError(
                f"option 'minMessagesPerTrigger' is {self.min_messages}, above"
                f" 'maxMessagesPerTrigger' {self.max_messages}"
            )
        if self.retention < 2 * self.msg_timeout:
            raise ConfigError(
                f"option 'walRetentionMs' is {self.retention * 1000:.0f}; it must be at least"
                f" twice 'msgTimeoutMs' ({self.msg_timeout * 1000:.0f})"
            )
        # The client's constructors check the rest. A constructor starts nothing.
        for topic in self.topics:
            Reader(
                topic,
                self.channel,
                nsqd_tcp_addresses=[tcp for tcp, _ in self.nsqds if tcp] or "127.0.0.1",
                lookupd_http_addresses=self.lookupds,
                lookupd_authorization=self.lookupd_authorization,
                max_in_flight=self.max_in_flight,
                options=ConnectionOptions(**self.connection, msg_timeout=self.msg_timeout),
            )
        for _, http in self.nsqds:
            NsqdHTTP(http).close()

    def _check_log(self, streaming: bool | None) -> None:
        if self.peek and streaming:
            raise ConfigError(
                "option 'peek' is for spark.read: a query that gives every message back would"
                " get it again; remove it"
            )
        if self.peek and (self.wal_path or self.drain_id):
            raise ConfigError(
                "option 'peek' takes nothing from the channel; remove it, or 'walPath' and"
                " 'drainId'"
            )
        if not self.wal_path and not self.peek:
            instead = ", or 'peek' to true to look without consuming" if not streaming else ""
            raise ConfigError(
                "option 'walPath' is missing: set it to a folder that the driver and all"
                f" executors share, such as <checkpointLocation>/nsq-wal{instead}"
            )
        if self.wal_path:
            open_store(self.wal_path, self.wal_options)
        if self.drain_id and streaming:
            raise ConfigError("option 'drainId' is for spark.read; remove it")
        if self.drain_id and _FOLDER.fullmatch(self.drain_id) is None:
            raise ConfigError(
                f"option 'drainId' is {self.drain_id!r}; it names a folder: up to 100 of the"
                " characters A-Z a-z 0-9 . _ -"
            )

    def http_options(self) -> dict[str, Any]:
        """Return keywords for NsqdHTTP and LookupdHTTP: https uses the same files as TLS."""
        return https_options(self.connection)


def _nsqds(given: Given) -> tuple[tuple[str, str], ...]:
    tcp = tuple(map(_with_port, given.names("nsqdTcpAddresses")))
    http = given.names("nsqdHttpAddresses")
    if not http:
        return tuple((address, _http_beside(address)) for address in tcp)
    if not tcp:
        return tuple(("", address) for address in http)
    if len(tcp) != len(http):
        raise ConfigError(
            f"options 'nsqdTcpAddresses' and 'nsqdHttpAddresses' name {len(tcp)} and {len(http)}"
            " nsqds; name the same ones in the same order"
        )
    return tuple(zip(tcp, http, strict=True))


def _with_port(address: str) -> str:
    has_port = re.fullmatch(r"unix:.*|.*[^:\]]:\d+|\[.*\]:\d+", address) is not None
    return address if has_port else f"{address}:4150"


def _http_beside(tcp: str) -> str:
    """Return the default HTTP address of the nsqd at a TCP address: the next port."""
    host, _, port = tcp.rpartition(":")
    if tcp.startswith("unix:") or not port.isdigit():
        raise ConfigError(
            f"option 'nsqdTcpAddresses' names {tcp!r}, which does not say where its HTTP API is;"
            " set 'nsqdHttpAddresses' to host:port of each"
        )
    return f"{host}:{int(port) + 1}"
