"""Names of graphite's series for the figures that nsqds push through statsd.

Knows nsqadmin's statsd options. Sends no request.
"""

from __future__ import annotations

from typing import Literal

from gnsqsync.admin.options import AdminOptions

__all__ = ["target"]


def target(options: AdminOptions, key: str, kind: Literal["gauge", "counter"] = "gauge") -> str:
    """Return graphite's target for ``key``, e.g. ``topic.orders.depth``, summed over all nsqds.

    nsqd puts its host and port into the prefix, as one part without dots. statsd inserts the whole
    name into the format for counters or gauges.
    """
    prefix = options.statsd_prefix.replace("%s", "*")
    if prefix and not prefix.endswith("."):
        prefix += "."
    layout = options.statsd_gauge_format if kind == "gauge" else options.statsd_counter_format
    # statsd drops the "#" of "#ephemeral", and other servers keep it.
    name = f"{prefix}{key}".replace("#", "*")
    return f"sumSeries({layout.replace('%s', name, 1)})"
