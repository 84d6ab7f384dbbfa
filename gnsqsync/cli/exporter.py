"""``gnsqsync exporter``: depths and counts of a whole cluster, for Prometheus to scrape."""

from __future__ import annotations

import sys
from typing import Any

import click

from gnsqsync.cli.common import (
    Flag,
    Signals,
    http_keywords,
    http_options,
    lookupd_option,
    nsqd_http_option,
)
from gnsqsync.commands.options_click import Number
from gnsqsync.errors import ConfigError
from gnsqsync.process.metrics_address import parse_metrics_address
from gnsqsync.process.output import mention
from gnsqsync.process.web_page import served, text_page

EXAMPLES = """\b
Examples:
  gnsqsync exporter
  gnsqsync exporter -l 10.0.0.9:4161 --listen 0.0.0.0:9117"""


@click.command(epilog=EXAMPLES)
@nsqd_http_option()
@lookupd_option()
@click.option(
    "--listen",
    default="127.0.0.1:9117",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of /metrics and /livez. Port 0: a free one.",
)
@click.option(
    "--timeout",
    type=Number(0.1),
    default=8.0,
    show_default=True,
    help="Seconds in which all servers must answer; less than Prometheus' scrape_timeout.",
)
@http_options
def exporter(
    nsqd_http_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    listen: str,
    timeout: float,
    **options: Any,
) -> None:
    """Serve the counts of every topic and channel of a cluster to Prometheus.

    Each scrape asks all nsqds. Without an address it asks the nsqd on this machine. Ctrl-C or
    SIGTERM ends the exporter.
    """
    keywords = http_keywords(options)
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from gnsqsync.admin.cluster_metrics import ClusterMetrics
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the exporter needs {error.name}: pip install 'gnsqsync[prometheus]'"
        ) from None
    host, port = parse_metrics_address(listen)
    nsqds = nsqd_http_addresses or (() if lookupd_http_addresses else ("127.0.0.1:4151",))
    metrics = ClusterMetrics(nsqds, lookupd_http_addresses, timeout=timeout, **keywords)
    registry = CollectorRegistry()
    registry.register(metrics)
    pages = {"/metrics": make_wsgi_app(registry), "/livez": text_page(lambda: (True, ["alive"]))}
    stopped = Flag()
    try:
        with Signals(stopped.set):
            try:
                site = served(host, port, pages)
                with site as port:
                    mention(sys.stdout, f"metrics at http://{host}:{port}/metrics")
                    while not stopped.wait(3600.0):
                        pass
            except OSError as error:
                raise ConfigError(f"metrics at {host}:{port}: {error.strerror}") from error
    finally:
        metrics.close()
