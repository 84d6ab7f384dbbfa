"""A cluster of embedded servers with traffic, and an nsqadmin in front of it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import NamedTuple

from gnsqsync import Message, NsqdHTTP, Reader
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support.servers import Server

__all__ = ["NsqadminSite", "nsqadmin_site"]


class NsqadminSite(NamedTuple):
    """The ``url`` of nsqadmin, without a slash at the end, and the HTTP addresses of both nsqds."""

    url: str
    nsqds: tuple[str, str]


@contextlib.contextmanager
def nsqadmin_site() -> Iterator[NsqadminSite]:
    """Yield a site with four topics.

    ``orders`` flows, but its channel ``metrics`` has no consumers. ``mails`` is paused.
    ``orders-dead`` has dead letters. ``clicks`` is busy.
    """
    with contextlib.ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        servers = [
            stack.enter_context(
                Nsqd(
                    lookupd_tcp_addresses=lookupd.tcp_address,
                    broadcast_address="127.0.0.1",
                    mem_queue_size=100,
                )
            )
            for _ in range(2)
        ]
        one, other = (stack.enter_context(NsqdHTTP(each.http_address)) for each in servers)
        for nsqd in (one, other):
            for topic, channels in (
                ("orders", ("archive", "metrics")),
                ("mails", ("send",)),
                ("clicks", ("count",)),
            ):
                nsqd.create_topic(topic)
                for channel in channels:
                    nsqd.create_channel(topic, channel)
            nsqd.pause_channel("mails", "send")
            nsqd.mpub("mails", [b"a mail"] * 20)
            nsqd.mpub("orders", [b'{"order": 1}'] * 150)
        one.mpub("orders-dead", [b'{"order": 7}'] * 7)
        addresses = [each.tcp_address for each in servers]
        for topic, channel in (("orders", "archive"), ("clicks", "count")):
            reader = Reader(topic, channel, ignore, nsqd_tcp_addresses=addresses, max_in_flight=10)
            reader.start(block=False)
            stack.callback(reader.join)
            stack.callback(reader.stop)
        ended = threading.Event()
        publisher = threading.Thread(target=publish, args=(one, ended))
        publisher.start()
        stack.callback(publisher.join)
        stack.callback(ended.set)
        admin = Server("embedded", "nsqadmin", [f"-lookupd-http-address={lookupd.http_address}"])
        stack.callback(admin.discard)
        admin.start()
        yield NsqadminSite(
            f"http://127.0.0.1:{admin.http_address[1]}",
            (servers[0].http_address, servers[1].http_address),
        )


def ignore(message: Message) -> None:
    """Handle the message without effect."""


def publish(nsqd: NsqdHTTP, ended: threading.Event) -> None:
    """Publish a few orders and more clicks until ``ended`` is set."""
    number = 0
    while not ended.wait(0.1):
        number += 1
        nsqd.mpub("clicks", [b"click"] * 25)
        if number % 5 == 0:
            nsqd.pub("orders", json.dumps({"order": number, "article": "tea"}).encode())
