"""Options of the sink as users write them, checked on the driver, and the search for the nsqds.

Knows names, units and ranges, and asks the nsqlookupds. Knows nothing of Spark, rows or batches.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsqsync import ConnectionOptions, LookupdHTTP, Reader, Writer
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.options import Given

__all__ = ["SinkOptions"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Bytes: nsqd's default --max-body-size (docs/protocol/publishing#publish).
_MAX_BODY_SIZE = 5242880
# Seconds between two rounds of questions while no nsqlookupd answers.
_ASK_SECONDS = 0.5
_HTTP_FIELDS = ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_verify")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of ``format("nsq")`` for writing, checked. Picklable.

    ``nsqds``: host:port of each nsqd, named or found. ``topic``: topic of every row; None if a
    column names it. ``max_batch_messages``, ``max_batch_bytes``: upper bounds of one MPUB.
    ``max_message_bytes``: nsqd's --max-msg-size. ``max_defer_ms``: nsqd's --max-req-timeout.
    ``publish_timeout``: seconds for one batch, over all nsqds. ``connection``: fields of
    ConnectionOptions.
    """

    nsqds: tuple[str, ...]
    topic: str | None = None
    max_batch_messages: int = 1000
    max_batch_bytes: int = 1 << 20
    max_message_bytes: int = 1 << 20
    max_defer_ms: int = 3_600_000
    publish_timeout: float = 30.0
    connection: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, patience: float = 0.0) -> SinkOptions:
        """Check the options, ask the nsqlookupds for their nsqds, and return the result.

        ``patience``: seconds for which the question is repeated while no nsqlookupd answers. Raises
        ConfigError with one sentence.
        """
        given = Given(options, "sink", also=("checkpointLocation", "queryName"))
        if given.take("path") is not None:
            raise ConfigError(
                "option 'path' is not possible: NSQ has no path; set 'topic' and call save() or"
                " start() without one"
            )
        nsqds = given.names("nsqdTcpAddresses")
        lookupds = given.names("lookupdHttpAddresses")
        authorization = given.take("lookupdAuthorization")
        found = cls(
            nsqds=nsqds,
            topic=given.take("topic"),
            max_batch_messages=given.count("maxBatchMessages", cls.max_batch_messages),
            max_batch_bytes=given.count("maxBatchBytes", cls.max_batch_bytes, 1024),
            max_message_bytes=given.count("maxMessageBytes", cls.max_message_bytes),
            max_defer_ms=given.count("maxDeferMs", cls.max_defer_ms, 0),
            publish_timeout=given.seconds("publishTimeoutMs", round(1000 * cls.publish_timeout), 1),
            connection=given.connection(),
        )
        given.finish()
        if not nsqds and not lookupds:
            raise ConfigError(
                "option 'nsqdTcpAddresses' is missing: set it to the nsqds to publish to, or"
                " 'lookupdHttpAddresses' to the nsqlookupds that know them"
            )
        if nsqds and lookupds:
            raise ConfigError(
                "options 'nsqdTcpAddresses' and 'lookupdHttpAddresses' are both set; set one of"
                " them"
            )
        found._check(lookupds, authorization)
        if not lookupds:
            return found
        return found.with_nsqds(find_nsqds(lookupds, authorization, found.connection, patience))

    def _check(self, lookupds: tuple[str, ...], authorization: str | None) -> None:
        """Have the client's constructors check the values. A constructor connects to nothing."""
        if self.topic is not None:
            Reader(self.topic, "sink", options=ConnectionOptions(), nsqd_tcp_addresses="localhost")
        Writer(
            self.nsqds or None,
            lookupd_http_addresses=lookupds,
            lookupd_authorization=authorization,
            options=ConnectionOptions(**self.connection),
        )

    def with_nsqds(self, nsqds: tuple[str, ...]) -> SinkOptions:
        """Return a copy with other nsqds."""
        return dataclasses.replace(self, nsqds=nsqds)

    def writer(self, partition: int) -> Writer:
        """Return a Writer that begins at nsqd number ``partition`` mod n, and fails over to others.

        The Writer publishes a message again if an nsqd did not answer. A duplicate is better than a
        failed task, which publishes everything again.
        """
        first = partition % len(self.nsqds)
        return Writer(
            [*self.nsqds[first:], *self.nsqds[:first]],
            policy="failover",
            publish_timeout=self.publish_timeout,
            retry_unknown=True,
            # Wait for an nsqd that is down: a task that fails publishes everything again.
            outage="wait",
            max_msg_size=self.max_message_bytes,
            max_body_size=max(_MAX_BODY_SIZE, self.max_batch_bytes),
            max_defer=self.max_defer_ms / 1000,
            options=ConnectionOptions(**self.connection),
        )


def find_nsqds(
    lookupds: tuple[str, ...],
    authorization: str | None,
    connection: Mapping[str, Any],
    patience: float = 0.0,
) -> tuple[str, ...]:
    """Return host:port of every nsqd that these nsqlookupds know, sorted.

    One nsqlookupd that answers with nsqds is enough. A warning names each that does not answer.
    Raises ConfigError if no nsqd is found within ``patience`` seconds.
    """
    http = {name: connection[name] for name in _HTTP_FIELDS if name in connection}
    deadline = time.monotonic() + patience
    while True:
        found: set[str] = set()
        failures = []
        for address in lookupds:
            client = LookupdHTTP(address, authorization=authorization, **http)
            try:
                found.update(str(node.tcp_address) for node in client.nodes())
            except NSQError as error:
                failures.append(str(error))
                log.warning("%s", error)
            finally:
                client.close()
        if found:
            return tuple(sorted(found))
        if time.monotonic() >= deadline:
            break
        time.sleep(_ASK_SECONDS)
    if failures:
        raise ConfigError(
            f"cannot find the nsqds: {'; '.join(failures)}; set option 'lookupdHttpAddresses' to"
            " the HTTP addresses of nsqlookupds that run"
        )
    raise ConfigError(
        f"the nsqlookupds {', '.join(lookupds)} know no nsqd: start nsqd with"
        " --lookupd-tcp-address, or set option 'nsqdTcpAddresses'"
    )
