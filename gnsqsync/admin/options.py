"""The options of nsqadmin as a frozen object: names, defaults and checks."""

from __future__ import annotations

import ipaddress
import posixpath
import ssl
from typing import ClassVar

from gnsqsync.daemon.options import Options, OptionsError, option
from gnsqsync.daemon.secrets import shown

__all__ = ["AdminOptions"]


class AdminOptions(Options):
    """Every flag of nsqadmin 1.3.0, ``-`` written ``_``, and ``read_only``.

    Durations are float seconds, repeatable flags tuples. Unlike the Go program it listens on
    127.0.0.1 by default.
    """

    program: ClassVar[str] = "nsqadmin"
    introduction: ClassVar[str] = (
        "This is gnsqsync's nsqadmin. It has the flags and the API of nsqadmin v1.3.0, and pages of"
        " its own.\nIt listens on 127.0.0.1 unless an address says otherwise (0.0.0.0:4171 for all"
        " interfaces).\nWithout --admin-user actions are taken from this machine only."
    )

    log_level: str = option(
        "log_level", "info", "set log verbosity: debug, info, warn, error, or fatal"
    )
    log_prefix: str = option("string", "[nsqadmin] ", "log message prefix")
    http_address: str = option("string", "127.0.0.1:4171", "<addr>:<port> to listen on")
    base_path: str = option("string", "/", "URL base path")
    read_only: bool = option("bool", False, "take no actions from anybody")
    lookupd_http_address: tuple[str, ...] = option(
        "strings",
        (),
        "lookupd HTTP address (may be given multiple times)",
        cfg="nsqlookupd_http_addresses",
    )
    nsqd_http_address: tuple[str, ...] = option(
        "strings",
        (),
        "nsqd HTTP address (may be given multiple times)",
        cfg="nsqd_http_addresses",
    )
    admin_user: tuple[str, ...] = option(
        "strings",
        (),
        "user who may act (may be given multiple times; if given, nobody else may)",
        cfg="admin_users",
    )
    acl_http_header: str = option(
        "string", "X-Forwarded-User", "HTTP header that names the user, set by a proxy"
    )
    allow_config_from_cidr: str = option(
        "string", "127.0.0.1/8", "a CIDR from which /config may be used"
    )
    notification_http_endpoint: str = option(
        "string", "", "HTTP endpoint (fully qualified) to which actions are POSTed"
    )
    http_client_connect_timeout: float = option("duration", 2.0, "timeout for HTTP connect")
    http_client_request_timeout: float = option("duration", 5.0, "timeout for HTTP request")
    http_client_tls_insecure_skip_verify: bool = option(
        "bool", False, "do not verify the certificates of nsqds"
    )
    http_client_tls_root_ca_file: str = option("string", "", "path to CA file for the HTTP client")
    http_client_tls_cert: str = option("string", "", "path to certificate file for the HTTP client")
    http_client_tls_key: str = option("string", "", "path to key file for the HTTP client")
    graphite_url: str = option("string", "", "graphite HTTP address")
    proxy_graphite: bool = option("bool", False, "proxy HTTP requests to graphite")
    statsd_prefix: str = option(
        "string", "nsq.%s", "prefix of statsd keys (%s: the host); must match nsqd's"
    )
    statsd_counter_format: str = option(
        "string", "stats.counters.%s.count", "name of a counter in graphite (%s: the key)"
    )
    statsd_gauge_format: str = option(
        "string", "stats.gauges.%s", "name of a gauge in graphite (%s: the key)"
    )
    statsd_interval: float = option("duration", 60.0, "interval of nsqd's statsd; must match it")
    dev_static_dir: str = option("string", "", "folder with static files for development")

    def _settle(self) -> None:
        path = self.base_path if self.base_path.startswith("/") else f"/{self.base_path}"
        # normpath would keep two slashes at the start.
        self.__dict__["base_path"] = posixpath.normpath("/" + path.lstrip("/"))

    def check(self) -> None:
        """Check the values as nsqadmin does before it starts.

        Raises:
            OptionsError: nsqadmin would not start. The text is that of the Go program.
        """
        if not (self.lookupd_http_address or self.nsqd_http_address):
            raise OptionsError("--nsqd-http-address or --lookupd-http-address required")
        if self.lookupd_http_address and self.nsqd_http_address:
            raise OptionsError("use --nsqd-http-address or --lookupd-http-address not both")
        for name in ("lookupd_http_address", "nsqd_http_address"):
            for address in getattr(self, name):
                host, colon, _ = address.rpartition(":")
                bracketed = host.startswith("[") and host.endswith("]")
                if not colon:
                    why = "missing port in address"
                elif ":" in host and not bracketed:
                    why = "too many colons in address"
                else:
                    continue
                flag, text = name.replace("_", "-"), shown(address)
                raise OptionsError(f"failed to resolve --{flag} ({text}) - address {text}: {why}")
        cert, key = self.http_client_tls_cert, self.http_client_tls_key
        if cert and not key:
            raise OptionsError(
                "--http-client-tls-key must be specified with --http-client-tls-cert"
            )
        if key and not cert:
            raise OptionsError(
                "--http-client-tls-cert must be specified with --http-client-tls-key"
            )
        self._check_tls()
        self.config_network()
        if self.statsd_interval <= 0:
            raise OptionsError("--statsd-interval must be positive")

    def _check_tls(self) -> None:
        cert, key = self.http_client_tls_cert, self.http_client_tls_key
        ca_file = self.http_client_tls_root_ca_file
        if cert:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key)
            except (OSError, ValueError) as error:
                raise OptionsError(f"failed to LoadX509KeyPair {cert}, {key} - {error}") from None
        if ca_file:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
            except (OSError, ValueError) as error:
                raise OptionsError(f"failed to read TLS root CA file {ca_file} - {error}") from None

    def config_network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
        """Return the network that may use /config, or None for all networks.

        Raises:
            OptionsError: ``allow_config_from_cidr`` is not a network.
        """
        text = self.allow_config_from_cidr
        if not text:
            return None
        try:
            if "/" not in text:
                raise ValueError(text)
            return ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise OptionsError(
                f"failed to parse --allow-config-from-cidr ({text}) - invalid CIDR address: {text}"
            ) from None
