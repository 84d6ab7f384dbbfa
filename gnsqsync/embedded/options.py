"""The options of nsqd and nsqlookupd (docs/protocol/limits) as frozen objects.

Knows names, defaults and ranges. Does not know the spelling on a command line or in a config file,
or what the servers do with the options.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Sequence
from typing import ClassVar, Literal, TypedDict

from gnsqsync.daemon.options import Options, OptionsError, is_loopback, option

try:
    # hashlib would load OpenSSL, which takes a twentieth of a start.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    from hashlib import md5

# Flags that are read and checked, but have no effect. The embedded nsqd does not scan its channels:
# it looks at a channel when something is due.
NO_EFFECT = frozenset(
    (
        "queue_scan_selection_count",
        "queue_scan_worker_pool_max",
    )
)

_INTRODUCTION = (
    "This is gnsqsync's embedded {0}, for development and tests. It answers like {0} v1.3.0,\n"
    "but listens on 127.0.0.1 unless an address says otherwise"
    " (0.0.0.0:<port> for all interfaces)."
)


def default_node_id() -> int:
    """Return the number, 0 to 1023, that the Go nsqd derives from the host name."""
    return zlib.crc32(md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


def _broadcast_address(tcp_address: str) -> str:
    return "127.0.0.1" if is_loopback(tcp_address) else socket.gethostname()


class NsqdOptions(Options):
    """Every flag of nsqd 1.3.0, ``-`` written ``_`` (docs/protocol/limits#nsqd-flags).

    Durations are float seconds, sizes bytes, addresses str, repeatable flags tuples.
    Unlike the Go program it listens on 127.0.0.1 by default, and then registers 127.0.0.1 with
    nsqlookupd instead of the host name.
    """

    program: ClassVar[str] = "nsqd"
    introduction: ClassVar[str] = _INTRODUCTION.format("nsqd")
    without_effect: ClassVar[dict[str, str]] = {
        **Options.without_effect,
        "worker-id": "[deprecated] use --node-id",
    }

    log_level: str = option(
        "log_level", "info", "set log verbosity: debug, info, warn, error, or fatal"
    )
    log_prefix: str = option("string", "[nsqd] ", "log message prefix")
    node_id: int = option(
        "int",
        0,
        "unique part for message IDs, in range [0,1024), from the host name if not given",
        cfg="id",
        factory=default_node_id,
    )
    tcp_address: str = option(
        "string", "127.0.0.1:4150", "address for TCP clients (<addr>:<port>, or a unix socket path)"
    )
    http_address: str = option(
        "string",
        "127.0.0.1:4151",
        "address for HTTP clients (<addr>:<port>, or a unix socket path; empty for none)",
    )
    https_address: str = option(
        "string", "127.0.0.1:4152", "address for HTTPS clients, used with -tls-cert only"
    )
    broadcast_address: str = option(
        "string",
        "",
        "address that is registered with lookupd"
        " (if not given: 127.0.0.1 when TCP listens on loopback, else the host name)",
    )
    broadcast_tcp_port: int = option(
        "int", 0, "TCP port that is registered with lookupd (0: the one nsqd listens on)"
    )
    broadcast_http_port: int = option(
        "int", 0, "HTTP port that is registered with lookupd (0: the one nsqd listens on)"
    )
    # None after PUT /config/nsqlookupd_tcp_addresses with null.
    lookupd_tcp_address: tuple[str, ...] | None = option(
        "strings",
        (),
        "lookupd TCP address (may be given multiple times)",
        cfg="nsqlookupd_tcp_addresses",
    )
    auth_http_address: tuple[str, ...] = option(
        "strings",
        (),
        "<addr>:<port> or a full url of an auth server (may be given multiple times)",
        cfg="auth_http_addresses",
    )
    http_client_connect_timeout: float = option("duration", 2.0, "timeout for HTTP connect")
    http_client_request_timeout: float = option("duration", 5.0, "timeout for HTTP request")

    data_path: str = option(
        "string", "", "folder for messages that do not fit in memory, and for all at a clean stop"
    )
    mem_queue_size: int = option(
        "int", 10000, "number of messages to keep in memory (per topic/channel)"
    )
    max_bytes_per_file: int = option(
        "int", 104857600, "number of bytes per file of a queue before the next one is begun"
    )
    sync_every: int = option(
        "int", 2500, "number of messages, written and read, after which a queue is synced to disk"
    )
    sync_timeout: float = option(
        "duration", 2.0, "time after which what was written is synced to disk"
    )
    queue_scan_worker_pool_max: int = option("int", 4, "has no effect in the embedded nsqd")
    queue_scan_selection_count: int = option("int", 20, "has no effect in the embedded nsqd")

    msg_timeout: float = option(
        "duration", 60.0, "default time before a message that is not answered is requeued"
    )
    max_msg_timeout: float = option(
        "duration", 900.0, "longest msg_timeout of a client, and longest extension by TOUCH"
    )
    max_msg_size: int = option("int", 1048576, "maximum size of a single message in bytes")
    max_req_timeout: float = option("duration", 3600.0, "maximum requeue and deferral delay")
    max_body_size: int = option("int", 5242880, "maximum size of a single command body in bytes")

    max_heartbeat_interval: float = option(
        "duration", 60.0, "longest heartbeat interval that a client may ask for"
    )
    max_rdy_count: int = option("int", 2500, "maximum RDY count for a client")
    max_output_buffer_size: int = option(
        "int", 65536, "largest output buffer in bytes that a client may ask for"
    )
    max_output_buffer_timeout: float = option(
        "duration", 30.0, "longest output buffer timeout that a client may ask for"
    )
    min_output_buffer_timeout: float = option(
        "duration", 0.025, "shortest output buffer timeout that a client may ask for"
    )
    output_buffer_timeout: float = option(
        "duration", 0.25, "default output buffer timeout told to clients"
    )
    max_channel_consumers: int = option(
        "int", 0, "maximum number of consumers per channel (0: no limit)"
    )

    statsd_address: str = option("string", "", "UDP <addr>:<port> of a statsd daemon")
    statsd_interval: float = option("duration", 60.0, "duration between pushing to statsd")
    statsd_mem_stats: bool = option("bool", True, "send memory statistics to statsd")
    statsd_prefix: str = option("string", "nsq.%s", "prefix of statsd keys (%s: the host)")
    statsd_udp_packet_size: int = option("int", 508, "the size in bytes of statsd UDP packets")
    statsd_exclude_ephemeral: bool = option(
        "bool", False, "leave ephemeral topics and channels out of statsd"
    )
    e2e_processing_latency_percentile: tuple[float, ...] = option(
        "floats",
        (),
        "processing time percentiles to track, (0, 1.0]"
        " (may be given multiple times or comma separated)",
        cfg="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time: float = option(
        "duration", 600.0, "the time that processing time percentiles look back"
    )

    tls_cert: str = option("string", "", "path to certificate file")
    tls_key: str = option("string", "", "path to key file")
    tls_client_auth_policy: str = option(
        "string", "", "client certificate auth policy ('require' or 'require-verify')"
    )
    tls_root_ca_file: str = option("string", "", "path to certificate authority file")
    tls_required: str = option(
        "tls_required", "false", "require TLS for client connections (true, false, tcp-https)"
    )
    tls_min_version: str = option(
        "tls_version", "tls1.0", "minimum TLS version ('tls1.0', 'tls1.1', 'tls1.2' or 'tls1.3')"
    )

    deflate: bool = option("bool", True, "offer deflate compression")
    max_deflate_level: int = option("int", 6, "highest deflate level that a client may ask for")
    snappy: bool = option("bool", True, "offer snappy compression")

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
        """Raise OptionsError, with Go's text, for a value with which nsqd does not start."""
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
        if self.sync_timeout <= 0:
            # The Go nsqd crashes at its first topic.
            raise OptionsError("--sync-timeout must be positive")
        if self.statsd_address and self.statsd_interval <= 0:
            # The Go nsqd crashes at its start.
            raise OptionsError("--statsd-interval must be positive")


class LookupdOptions(Options):
    """Every flag of nsqlookupd 1.3.0, ``-`` written ``_`` (docs/protocol/limits#nsqlookupd-flags).

    Durations are float seconds. The default addresses are on 127.0.0.1, as for NsqdOptions.
    """

    program: ClassVar[str] = "nsqlookupd"
    introduction: ClassVar[str] = _INTRODUCTION.format("nsqlookupd")

    log_level: str = option(
        "log_level", "info", "set log verbosity: debug, info, warn, error, or fatal"
    )
    log_prefix: str = option("string", "[nsqlookupd] ", "log message prefix")
    tcp_address: str = option("string", "127.0.0.1:4160", "<addr>:<port> for TCP clients")
    http_address: str = option("string", "127.0.0.1:4161", "<addr>:<port> for HTTP clients")
    broadcast_address: str = option(
        "string",
        "",
        "address of this lookupd node, told to nsqd"
        " (if not given: 127.0.0.1 when TCP listens on loopback, else the host name)",
    )
    inactive_producer_timeout: float = option(
        "duration", 300.0, "time that a producer remains in the active list since its last ping"
    )
    tombstone_lifetime: float = option(
        "duration", 45.0, "time that a producer remains tombstoned if registration remains"
    )

    def _settle(self) -> None:
        if not self.broadcast_address:
            address = _broadcast_address(self.tcp_address)
            self.__dict__["broadcast_address"] = address


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
