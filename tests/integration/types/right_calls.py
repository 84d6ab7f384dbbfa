"""Calls as users write them, of every public part. No type checker may say a word here."""

# pyright: strict

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import requests
from flask import Flask

import gnsqsync
from gnsqsync import (
    AddressLike,
    ConnectionOptionKeywords,
    ConnectionOptions,
    LookupdHTTP,
    Message,
    NsqdHTTP,
    Observer,
    Reader,
    ReaderGroup,
    Requeue,
    TopicGroup,
    Writer,
)
from gnsqsync.django import get_writer, nsq_handler, publish_on_commit
from gnsqsync.django.test import captured_messages
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.errors import ConfigError, NotSent, PublishError
from gnsqsync.flask import NSQ
from gnsqsync.stats import ReaderStats, StopResult


def handle(message: Message) -> None:
    if message.attempts > 3:
        raise Requeue(10.0, backoff=False)
    body: bytes = message.body
    print(body, message.id, message.nsqd_address, message.json())


def handle_and_say(message: Message, verbose: bool = False) -> bool:
    return message.finish()


class Handler:
    def __call__(self, message: Message) -> None:
        message.detach()

    def worker_ended(self) -> None: ...

    def method(self, message: Message) -> int:
        return len(message.body)


class Watching(Observer):
    def connected(self, nsqd_address: str) -> None:
        print(nsqd_address)

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        print(message, error)


def give_up(message: Message, error: BaseException | None) -> None: ...


def session() -> requests.Session:
    return requests.Session()


# -- addresses -----------------------------------------------------------------------------------

Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1:4150")
Reader("orders", "mail", handle, nsqd_tcp_addresses="10.0.0.1,10.0.0.2")
Reader("orders", "mail", handle, nsqd_tcp_addresses=["10.0.0.1:4150", "unix:///run/nsqd.sock"])
Reader("orders", "mail", handle, nsqd_tcp_addresses=("10.0.0.1", 4150))
Reader("orders", "mail", handle, nsqd_tcp_addresses=[("10.0.0.1", 4150), "10.0.0.2"])
Reader("orders", "mail", handle, nsqd_tcp_addresses={"10.0.0.1", "10.0.0.2"})
Reader("orders", "mail", handle, lookupd_http_addresses=["https://lookupd:4161", "10.0.0.1"])
some_addresses: list[str] = ["10.0.0.1", "10.0.0.2"]
Reader("orders", "mail", handle, nsqd_tcp_addresses=some_addresses)
Reader("orders", "mail", handle, lookupd_http_addresses=(a for a in some_addresses))

# -- every option --------------------------------------------------------------------------------

reader = Reader(
    "orders",
    "mail",
    handler=handle_and_say,
    nsqd_tcp_addresses="127.0.0.1",
    lookupd_http_addresses="127.0.0.1:4161",
    max_in_flight=100,
    concurrency=4,
    max_attempts=0,
    max_deliveries=20,
    requeue_delay=1,
    max_requeue_delay=60.0,
    max_backoff_duration=0,
    backoff_multiplier=0.5,
    backoff_strategy="full_jitter",
    backoff_on_fin_failed=True,
    lookupd_poll_interval=15.0,
    lookupd_poll_jitter=0.1,
    lookupd_authorization=None,
    lookupd_session=session,
    low_rdy_idle_timeout=10.0,
    low_rdy_timeout=30.0,
    rdy_redistribute_interval=5.0,
    latency="throughput",
    auto_touch=True,
    on_giving_up="discard",
    observer=[Watching(), Watching()],
    runtime="threads",
    client_id="a",
    hostname="b",
    user_agent="c",
    connect_timeout=1.0,
    heartbeat_interval=30,
    msg_timeout=60.0,
    sample_rate=10,
    output_buffer_size=-1,
    output_buffer_timeout=0.025,
    tls=ssl.create_default_context(),
    tls_server_hostname="nsqd",
    snappy=True,
    auth_secret=lambda: "secret",
    topology_region="eu",
    topology_zone="a",
    local_addr="127.0.0.1",
    address_map={"nsqd:4150": "127.0.0.1:4150"},
    max_frame_size=1 << 20,
)
Reader(
    "orders",
    "mail",
    handle,
    nsqd_tcp_addresses="127.0.0.1",
    backoff_strategy=lambda level: 2.0 * level,
    on_giving_up=give_up,
    dead_letter_topic=None,
    observer=Watching(),
    runtime="gevent",
    options=ConnectionOptions(
        tls=True,
        tls_ca_file="ca.pem",
        tls_cert_file="cert.pem",
        tls_key_file="key.pem",
        tls_verify=False,
        deflate=True,
        deflate_level=9,
        auth_secret=b"secret",
        address_map=lambda found: found,
    ),
)
Reader("orders", "mail", Handler(), nsqd_tcp_addresses="127.0.0.1")
Reader("orders", "mail", Handler().method, nsqd_tcp_addresses="127.0.0.1")
Reader("orders", "mail", print, nsqd_tcp_addresses="127.0.0.1")
Reader("orders", "mail", lambda message: message.touch(), nsqd_tcp_addresses="127.0.0.1")

# -- a Reader at work ----------------------------------------------------------------------------

ended: StopResult | None = reader.start(block=False)
stats: ReaderStats = reader.stats()
rdy: list[int] = [connection.rdy for connection in stats.connections]
reader.add_nsqd("10.0.0.3")
reader.add_nsqd(("10.0.0.3", 4150))
reader.remove_nsqd("10.0.0.3")
reader.add_lookupd("10.0.0.3:4161")
reader.remove_lookupd("10.0.0.3:4161")
reader.pause()
reader.resume()
reader.set_max_in_flight(10)
reader.ensure_channel(timeout=5.0)
starved: bool = reader.is_starved or reader.is_in_backoff
reader.stop(timeout=5.0)
reader.join(1.0)


def pull() -> None:
    with Reader("orders", "mail", nsqd_tcp_addresses="127.0.0.1", max_in_flight=100) as source:
        for batch in source.batches(100, 1.0, max_idle=0.1):
            finished: int = source.finish(batch)
            print(finished)
        for message in source:
            message.requeue(5.0, backoff=False)


# -- groups --------------------------------------------------------------------------------------


def make(topic: str) -> Reader:
    return Reader(topic, "mail", handle, lookupd_http_addresses="127.0.0.1")


with ReaderGroup([reader, make("invoices")], max_in_flight=10, runtime="threads") as group:
    results: list[StopResult] = group.join()
with TopicGroup(
    "^shop_",
    make,
    lookupd_http_addresses=["127.0.0.1:4161"],
    max_in_flight=None,
    lookupd_poll_interval=5.0,
    lookupd_poll_jitter=0.3,
    lookupd_authorization="token",
    lookupd_session=session,
    runtime=None,
    options=ConnectionOptions(tls=True),
) as topics:
    names: list[str] = [one.topic for one in topics.readers]

# -- publishing ----------------------------------------------------------------------------------

with Writer() as writer:
    writer.publish("orders", b"one", defer=1.5, timeout=2)
    writer.publish("orders", "one")
    writer.publish_many("orders", ["one", b"two"], timeout=2.0)
    writer.publish_many("orders", (str(n) for n in range(3)))
    try:
        writer.publish_async("orders", b"one", defer=None).result(1.0)
    except NotSent as error:
        print(error.causes)
    except PublishError as error:
        print(error.acknowledged)
    except ConfigError:
        pass
    writer.connect(1.0)
    writer.ping()
    published: int = writer.stats().published
Writer("127.0.0.1", policy="failover", outage="wait", runtime="gevent", retry_unknown=True)
Writer(
    [("10.0.0.1", 4150)],
    lookupd_http_addresses=["10.0.0.1"],
    lookupd_poll_interval=15,
    lookupd_poll_jitter=0.0,
    lookupd_authorization=None,
    lookupd_session=session,
    policy="round_robin",
    publish_timeout=1.0,
    outage="fail",
    max_msg_size=1 << 20,
    max_body_size=5 << 20,
    max_defer=3600,
    options=None,
    snappy=True,
    msg_timeout=None,
)

# -- functions around a Reader or a Writer -------------------------------------------------------


def consumer(
    topic: str, addresses: AddressLike, **options: Unpack[ConnectionOptionKeywords]
) -> Reader:
    return Reader(topic, "mail", handle, nsqd_tcp_addresses=addresses, **options)


consumer("orders", "127.0.0.1", tls=True, msg_timeout=30.0)
secure: ConnectionOptionKeywords = {"tls": True, "auth_secret": "secret"}
Writer("127.0.0.1", **secure)
from_a_file: dict[str, Any] = {"snappy": True}
Writer("127.0.0.1", **from_a_file)

# -- HTTP ----------------------------------------------------------------------------------------

with NsqdHTTP("unix:///run/nsqd-http.sock", timeout=1.0, connect_timeout=0.5) as nsqd_http:
    nsqd_http.pub("orders", b"one", defer=1.0)
    nsqd_http.mpub("orders", ["one", "two"])
    depth: int = nsqd_http.stats(topic="orders").topics[0].depth
with LookupdHTTP(("127.0.0.1", 4161), authorization="token", tls_verify=False) as lookupd_http:
    hosts: list[str] = [p.broadcast_address for p in lookupd_http.lookup("orders").producers]

# -- the embedded servers ------------------------------------------------------------------------


def servers() -> Iterator[str]:
    with Nsqlookupd(inactive_producer_timeout=1.0) as lookupd:
        addresses = [lookupd.tcp_address]
        with Nsqd(lookupd_tcp_addresses=addresses, msg_timeout=1, max_msg_size=100) as nsqd:
            yield nsqd.tcp_address


# -- Django and Flask ----------------------------------------------------------------------------


@nsq_handler("orders", "mail", max_attempts=3, latency="adaptive", tls=True)
def send_mail(message: Message) -> None: ...


@nsq_handler("orders", "rows", alias="default", per_message_transaction=True, name="shop.rows")
def write_rows(message: Message) -> bool:
    return True


of_django: Callable[[Message], bool] = write_rows
get_writer().publish("orders", b"one")
publish_on_commit("orders", "one", robust=True, timeout=1.0)

app = Flask(__name__)
nsq = NSQ(app)


@nsq.handler("orders", "mail", concurrency=2, observer=Watching(), on_giving_up=give_up)
def send_again(message: Message) -> None: ...


nsq.publish("orders", "one", defer=1.0)
with captured_messages("default", eager=True) as handled:
    bodies_of_handled: list[bytes] = [message.body for message in handled]
with nsq.captured_messages(app, eager=True), nsq.captured_messages() as captured:
    topics_of_captured: list[str] = [message.topic for message in captured]

version: str = gnsqsync.__version__
