"""The options of nsqd and nsqlookupd (docs/protocol/limits) as frozen objects.

Knows names, defaults and ranges. Knows nothing of how a command line or a config file spells
them (flags.py), nor of what the servers do with them.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypedDict

try:
    # As hashlib has it, without OpenSSL, which takes a twentieth of a start to load.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    from hashlib import md5

# Read and checked, but without effect here: the embedded nsqd keeps its queues in memory, scans
# every channel exactly when something is due, and sends frames at once.
NO_EFFECT = frozenset(
    (
        "max_bytes_per_file",
        "queue_scan_selection_count",
        "queue_scan_worker_pool_max",
        "sync_every",
        "sync_timeout",
    )
)


class OptionsError(Exception):
    """A server cannot start with these options; the Go program's text, exit status 1.

    Logged as ``failed to instantiate nsqd - <text>``.
    """


class StartError(OptionsError):
    """A server cannot start; the text is logged as it stands (config file, metadata)."""


def default_node_id() -> int:
    """0 to 1023, from the host name, the same number as the Go nsqd derives."""
    return zlib.crc32(md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


def is_loopback(address: str) -> bool:
    """Whether a listen address can be reached from this machine only. A path is a unix socket."""
    host, colon, _ = address.rpartition(":")
    if not colon:
        return True
    host = host.strip("[]")
    if host in ("localhost", "127.0.0.1"):
        return True
    # Here, as most listen nowhere else.
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, wherever it leads


class Option(NamedTuple):
    """One option of a program."""

    kind: str
    default: Callable[[], Any]
    help: str
    cfg: str
    """Its name in the config file, where that is another."""


def _option(
    kind: str, default: Any, text: str, *, cfg: str = "", factory: Callable[[], Any] | None = None
) -> Any:
    return Option(kind, (lambda: default) if factory is None else factory, text, cfg)


def _broadcast_address(tcp_address: str) -> str:
    return "127.0.0.1" if is_loopback(tcp_address) else socket.gethostname()


class _Options:
    """Frozen values of options, given by keyword.

    As a dataclass would be, which takes a tenth of nsqd's start to import and to build.
    """

    known: ClassVar[dict[str, Option]]
    """All options, by field name."""

    def __init_subclass__(cls) -> None:
        cls.known = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.known.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        for name, option in self.known.items():
            self.__dict__[name] = given[name] if name in given else option.default()
        self._settle()

    def _settle(self) -> None:
        """Sets what depends on other values."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use replace()")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)!r})"

    def replace(self, **changes: Any) -> Self:
        """The same with other values."""
        return type(self)(**{**vars(self), **changes})


class NsqdOptions(_Options):
    """Every flag of nsqd 1.3.0, ``-`` written ``_`` (docs/protocol/limits#nsqd-flags).

    Durations are float seconds, sizes bytes, addresses str, repeatable flags tuples.
    Unlike the Go program it listens on 127.0.0.1 unless told otherwise, and then tells nsqlookupd
    127.0.0.1 instead of the host name.
    """

    program: ClassVar[str] = "nsqd"

    log_level: str = _option(
        "log_level", "info", "set log verbosity: debug, info, warn, error, or fatal"
    )
    log_prefix: str = _option("string", "[nsqd] ", "log message prefix")
    node_id: int = _option(
        "int",
        0,
        "unique part for message IDs, in range [0,1024), from the host name if not given",
        cfg="id",
        factory=default_node_id,
    )
    tcp_address: str = _option(
        "string", "127.0.0.1:4150", "address for TCP clients (<addr>:<port>, or a unix socket path)"
    )
    http_address: str = _option(
        "string",
        "127.0.0.1:4151",
        "address for HTTP clients (<addr>:<port>, or a unix socket path; empty for none)",
    )
    https_address: str = _option(
        "string", "127.0.0.1:4152", "address for HTTPS clients, used with -tls-cert only"
    )
    broadcast_address: str = _option(
        "string",
        "",
        "address that is registered with lookupd"
        " (if not given: 127.0.0.1 when TCP listens on loopback, else the host name)",
    )
    broadcast_tcp_port: int = _option(
        "int", 0, "TCP port that is registered with lookupd (0: the one nsqd listens on)"
    )
    broadcast_http_port: int = _option(
        "int", 0, "HTTP port that is registered with lookupd (0: the one nsqd listens on)"
    )
    # None after PUT /config/nsqlookupd_tcp_addresses with null.
    lookupd_tcp_address: tuple[str, ...] | None = _option(
        "strings",
        (),
        "lookupd TCP address (may be given multiple times)",
        cfg="nsqlookupd_tcp_addresses",
    )
    auth_http_address: tuple[str, ...] = _option(
        "strings",
        (),
        "<addr>:<port> or a full url of an auth server (may be given multiple times)",
        cfg="auth_http_addresses",
    )
    http_client_connect_timeout: float = _option("duration", 2.0, "timeout for HTTP connect")
    http_client_request_timeout: float = _option("duration", 5.0, "timeout for HTTP request")

    data_path: str = _option("string", "", "folder for what is kept over a clean stop")
    mem_queue_size: int = _option(
        "int", 10000, "number of messages to keep in memory (per topic/channel)"
    )
    max_bytes_per_file: int = _option("int", 104857600, "has no effect in the embedded nsqd")
    sync_every: int = _option("int", 2500, "has no effect in the embedded nsqd")
    sync_timeout: float = _option("duration", 2.0, "has no effect in the embedded nsqd")
    queue_scan_worker_pool_max: int = _option("int", 4, "has no effect in the embedded nsqd")
    queue_scan_selection_count: int = _option("int", 20, "has no effect in the embedded nsqd")

    msg_timeout: float = _option(
        "duration", 60.0, "default time before a message that is not answered is requeued"
    )
    max_msg_timeout: float = _option(
        "duration", 900.0, "longest msg_timeout of a client, and longest extension by TOUCH"
    )
    max_msg_size: int = _option("int", 1048576, "maximum size of a single message in bytes")
    max_req_timeout: float = _option("duration", 3600.0, "maximum requeue and deferral delay")
    max_body_size: int = _option("int", 5242880, "maximum size of a single command body in bytes")

    max_heartbeat_interval: float = _option(
        "duration", 60.0, "longest heartbeat interval that a client may ask for"
    )
    max_rdy_count: int = _option("int", 2500, "maximum RDY count for a client")
    max_output_buffer_size: int = _option(
        "int", 65536, "largest output buffer in bytes that a client may ask for"
    )
    max_output_buffer_timeout: float = _option(
        "duration", 30.0, "longest output buffer timeout that a client may ask for"
    )
    min_output_buffer_timeout: float = _option(
        "duration", 0.025, "shortest output buffer timeout that a client may ask for"
    )
    output_buffer_timeout: float = _option(
        "duration", 0.25, "default output buffer timeout told to clients"
    )
    max_channel_consumers: int = _option(
        "int", 0, "maximum number of consumers per channel (0: no limit)"
    )

    statsd_address: str = _option("string", "", "UDP <addr>:<port> of a statsd daemon")
    statsd_interval: float = _option("duration", 60.0, "duration between pushing to statsd")
    statsd_mem_stats: bool = _option("bool", True, "send memory statistics to statsd")
    statsd_prefix: str = _option("string", "nsq.%s", "prefix of statsd keys (%s: the host)")
    statsd_udp_packet_size: int = _option("int", 508, "the size in bytes of statsd UDP packets")
    statsd_exclude_ephemeral: bool = _option(
        "bool", False, "leave ephemeral topics and channels out of statsd"
    )
    e2e_processing_latency_percentile: tuple[float, ...] = _option(
        "floats",
        (),
        "processing time percentiles to track, (0, 1.0]"
        " (may be given multiple times or comma separated)",
        cfg="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time: float = _option(
        "duration", 600.0, "the time that processing time percentiles look back"
    )

    tls_cert: str = _option("string", "", "path to certificate file")
    tls_key: str = _option("string", "", "path to key file")
    tls_client_auth_policy: str = _option(
        "string", "", "client certificate auth policy ('require' or 'require-verify')"
    )
    tls_root_ca_file: str = _option("string", "", "path to certificate authority file")
    tls_required: str = _option(
        "tls_required", "false", "require TLS for client connections (true, false, tcp-https)"
    )
    tls_min_version: str = _option(
        "tls_version", "tls1.0", "minimum TLS version ('tls1.0', 'tls1.1', 'tls1.2' or 'tls1.3')"
    )

    deflate: bool = _option("bool", True, "offer deflate compression")
    max_deflate_level: int = _option("int", 6, "highest deflate level that a client may ask for")
    snappy: bool = _option("bool", True, "offer snappy compression")

    def _settle(self) -> None:
        if not self.broadcast_address:
            address = _broadcast_address(self.tcp_address)
            self.__dict__["broadcast_address"] = address
        if self.tls_client_auth_policy and self.tls_required == "false":
            self.__dict__["tls_required"] = "true"
        found = sorted(self.e2e_processing_latency_percentile, reverse=True)
        # Go writes 1.0 as 1, in GET /config and in /stats.
        latencies = tuple(1 if latency == 1 else latency for latency in found)
        self.__dict__["e2e_processing_latency_percentile"] = latencies

    def check(self) -> None:
        """OptionsError with the Go program's text for a value that nsqd does not start with."""
        if not 1 <= self.max_deflate_level <= 9:
            raise OptionsError("--max-deflate-level must be [1,9]")
        if not 0 <= self.node_id < 1024:
            raise OptionsError("--node-id must be [0,1024)")
        if self.tls_required != "false" and not (self.tls_cert or self.tls_key):
            raise OptionsError("cannot require TLS client connections without TLS key and cert")
        for latency in self.e2e_processing_latency_percentile:
            if not 0 < latency <= 1:
                raise OptionsError(f"invalid E2E processing latency percentile: {latency:g}")
        if self.output_buffer_timeout <= 0:
            # The Go nsqd starts and then crashes at its first client.
            raise OptionsError("--output-buffer-timeout must be positive")
        if self.statsd_address and self.statsd_interval <= 0:
            # The Go nsqd crashes at its start.
            raise OptionsError("--statsd-interval must be positive")


class LookupdOptions(_Options):
    """Every flag of nsqlookupd 1.3.0, ``-`` written ``_`` (docs/protocol/limits#nsqlookupd-flags).

    Durations are float seconds. Listens on 127.0.0.1 unless told otherwise, like NsqdOptions.
    """

    program: ClassVar[str] = "nsqlookupd"

    log_level: str = _option(
        "log_level", "info", "set log verbosity: debug, info, warn, error, or fatal"
    )
    log_prefix: str = _option("string", "[nsqlookupd] ", "log message prefix")
    tcp_address: str = _option("string", "127.0.0.1:4160", "<addr>:<port> for TCP clients")
    http_address: str = _option("string", "127.0.0.1:4161", "<addr>:<port> for HTTP clients")
    broadcast_address: str = _option(
        "string",
        "",
        "address of this lookupd node, told to nsqd"
        " (if not given: 127.0.0.1 when TCP listens on loopback, else the host name)",
    )
    inactive_producer_timeout: float = _option(
        "duration", 300.0, "time that a producer remains in the active list since its last ping"
    )
    tombstone_lifetime: float = _option(
        "duration", 45.0, "time that a producer remains tombstoned if registration remains"
    )

    def _settle(self) -> None:
        if not self.broadcast_address:
            address = _broadcast_address(self.tcp_address)
            self.__dict__["broadcast_address"] = address

    def check(self) -> None:
        """Nothing is refused: nsqlookupd starts with any value that can be read."""


class NsqdFlags(TypedDict, total=False):
    """The fields of NsqdOptions that Nsqd takes as further keywords; all may be left out."""

    log_level: Literal["debug", "info"]
    log_prefix: str
    node_id: int
    https_address: str
    broadcast_address: str
    broadcast_tcp_port: int
    broadcast_http_port: int
    auth_http_address: Sequence[str]
    http_client_connect_timeout: float
    http_client_request_timeout: float
    mem_queue_size: int
    max_bytes_per_file: int
    sync_every: int
    sync_timeout: float
    queue_scan_worker_pool_max: int
    queue_scan_selection_count: int
    msg_timeout: float
    max_msg_timeout: float
    max_msg_size: int
    max_req_timeout: float
    max_body_size: int
    max_heartbeat_interval: float
    max_rdy_count: int
    max_output_buffer_size: int
    max_output_buffer_timeout: float
    min_output_buffer_timeout: float
    output_buffer_timeout: float
    max_channel_consumers: int
    statsd_address: str
    statsd_interval: float
    statsd_mem_stats: bool
    statsd_prefix: str
    statsd_udp_packet_size: int
    statsd_exclude_ephemeral: bool
    e2e_processing_latency_percentile: Sequence[float]
    e2e_processing_latency_window_time: float
    tls_cert: str
    tls_key: str
    tls_client_auth_policy: Literal["", "require", "require-verify"]
    tls_root_ca_file: str
    tls_required: Literal["false", "true", "tcp-https"]
    tls_min_version: Literal["tls1.0", "tls1.1", "tls1.2", "tls1.3"]
    deflate: bool
    max_deflate_level: int
    snappy: bool


class LookupdFlags(TypedDict, total=False):
    """The fields of LookupdOptions that Nsqlookupd takes as further keywords."""

    log_level: Literal["debug", "info"]
    log_prefix: str
    broadcast_address: str
    inactive_producer_timeout: float
    tombstone_lifetime: float
