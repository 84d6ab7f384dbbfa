"""Where the metrics and the health of a process are: host, port and paths.

Knows texts only, so that a probe loads nothing else.
"""

from __future__ import annotations

import re

from gnsqsync.errors import ConfigError

__all__ = ["LIVE", "READY", "parse_metrics_address", "port_of_process"]

LIVE, READY = "/livez", "/readyz"


def port_of_process(host: str, port: int, number: int) -> int:
    """That of process ``number``; 0 stays, the kernel's choice. ConfigError above 65535."""
    if port + number > 65535:
        raise ConfigError(
            f"metrics at {host}:{port + number}: ports end with 65535; as each process takes the"
            " next one, give one that is lower"
        )
    return port + number if port else 0


def parse_metrics_address(address: str) -> tuple[str, int]:
    """Host, 127.0.0.1 where there is none, and port. ConfigError when it is not valid."""
    host, _, port = address.rpartition(":")
    # int() accepts digits of other scripts, and refuses some that isdigit() accepts.
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65535:
        raise ConfigError(
            f"the metrics address is {address!r}; it must be PORT or HOST:PORT, with a port from 0"
            " to 65535"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
