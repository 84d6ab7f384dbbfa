"""The address of the metrics and the health of a process: host, port and paths.

Knows texts only, so that a probe loads no other module.
"""

from __future__ import annotations

import re

from gnsqsync.errors import ConfigError

__all__ = ["LIVE", "READY", "parse_metrics_address", "port_of_process"]

LIVE, READY = "/livez", "/readyz"


def port_of_process(host: str, port: int, number: int) -> int:
    """Return the port of process ``number``; 0, the kernel's choice, stays 0. ConfigError."""
    if port + number > 65535:
        raise ConfigError(
            f"metrics at {host}:{port + number}: the highest port is 65535, and each process takes"
            " the next port; give a lower one"
        )
    return port + number if port else 0


def parse_metrics_address(address: str) -> tuple[str, int]:
    """Return host (127.0.0.1 by default) and port. ConfigError if the address is not valid."""
    host, _, port = address.rpartition(":")
    # int() accepts digits of other scripts, and refuses some that isdigit() accepts.
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65535:
        raise ConfigError(
            f"the metrics address is {address!r}; it must be PORT or HOST:PORT, with a port from 0"
            " to 65535"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
