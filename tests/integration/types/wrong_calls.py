"""Calls with a mistake each. Every type checker must object to the lines marked ``# wrong``.

And to no other line: ``test_user_code.py`` compares.
"""

from __future__ import annotations

from flask import Flask

from gnsqsync import (
    ConnectionOptions,
    LookupdHTTP,
    Message,
    NsqdHTTP,
    Reader,
    ReaderGroup,
    TopicGroup,
    Writer,
)
from gnsqsync.django import nsq_handler, publish_on_commit
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.flask import NSQ


def handle(message: Message) -> None: ...


def takes_nothing() -> None: ...


def takes_two(message: Message, reader: Reader) -> None: ...


def takes_bytes(body: bytes) -> None: ...


def make(topic: str) -> Reader:
    return Reader(topic, "mail", handle, nsqd_tcp_addresses="127.0.0.1")


reader = make("orders")
writer = Writer()
nsqd_http = NsqdHTTP()
nsq = NSQ(Flask(__name__))

# -- names of options ----------------------------------------------------------------------------

Reader("orders", "mail", handle, nsqd_tcp_address="127.0.0.1")  # wrong: a missing s
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", max_inflight=1)  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", heartbeat=30.0)  # wrong
Reader("orders", handle, nsqd_tcp_addresses="127.0.0.1")  # wrong: no channel
Writer("127.0.0.1", timeout=1.0)  # wrong: publish_timeout
Writer("127.0.0.1", tls_verfy=False)  # wrong
Writer("127.0.0.1", latency="adaptive")  # wrong: of a Reader
ConnectionOptions(tls_ca="ca.pem")  # wrong: tls_ca_file
ReaderGroup([reader], concurrency=3)  # wrong
TopicGroup("^shop_", make, lookupd_http_addresses="127.0.0.1", tls=True)  # wrong: in options
TopicGroup("^shop_", make)  # wrong: no addresses
NsqdHTTP("127.0.0.1", tls=True)  # wrong: by the URL
LookupdHTTP("127.0.0.1", max_msg_size=100)  # wrong: of nsqd
Nsqd(msg_timeouts=1.0)  # wrong
Nsqlookupd(msg_timeout=1.0)  # wrong: of nsqd

# -- words ---------------------------------------------------------------------------------------

Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", latency="low")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", runtime="asyncio")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", on_giving_up="drop")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", backoff_strategy="linear")  # wrong
Writer(policy="random")  # wrong
Writer(outage="block")  # wrong
Writer(runtime="greenlets")  # wrong
ReaderGroup([reader], runtime="async")  # wrong
TopicGroup("^shop_", make, lookupd_http_addresses="127.0.0.1", runtime="thread")  # wrong
NsqdHTTP("127.0.0.1", runtime="thread")  # wrong

# -- types ---------------------------------------------------------------------------------------

Reader("orders", "mail", handle, nsqd_tcp_addresses=4150)  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses=[4150])  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses=b"127.0.0.1")  # wrong
Reader("orders", "mail", handle, lookupd_http_addresses=[("127.0.0.1", 4161)])  # wrong: URLs
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", max_in_flight="100")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", concurrency=1.5)  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", msg_timeout="60s")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", tls="ca.pem")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", observer=print)  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", lookupd_session={})  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", options={"tls": True})  # wrong
Reader(b"orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1")  # wrong
reader.add_nsqd(4150)  # wrong
reader.add_nsqd(["10.0.0.1", "10.0.0.2"])  # wrong: one at a time
reader.add_lookupd(("127.0.0.1", 4161))  # wrong
reader.stop("now")  # wrong
reader.batches(10)  # wrong: no max_wait
Writer(retry_unknown="yes")  # wrong
Writer(auth_secret=3)  # wrong
Writer(address_map=["a", "b"])  # wrong
writer.publish("orders", {"id": 1})  # wrong: text or bytes
writer.publish("orders", b"one", defer="1s")  # wrong
writer.publish("orders", b"one", 1.5)  # wrong: defer= or timeout=
writer.publish_many("orders", [1, 2])  # wrong
writer.publish_async("orders", None)  # wrong
ReaderGroup(reader)  # wrong: a list of them
TopicGroup("^shop_", handle, lookupd_http_addresses="127.0.0.1")  # wrong: makes no Reader
NsqdHTTP(4151)  # wrong
nsqd_http.pub("orders", 1)  # wrong
Nsqd(msg_timeout="1s")  # wrong

# -- handlers ------------------------------------------------------------------------------------

Reader("orders", "mail", takes_nothing, nsqd_tcp_addresses="127.0.0.1")  # wrong
Reader("orders", "mail", takes_two, nsqd_tcp_addresses="127.0.0.1")  # wrong
Reader("orders", "mail", takes_bytes, nsqd_tcp_addresses="127.0.0.1")  # wrong
Reader("orders", "mail", "jobs.handle", nsqd_tcp_addresses="127.0.0.1")  # wrong
Reader("orders", "mail", handle, nsqd_tcp_addresses="127.0.0.1", on_giving_up=handle)  # wrong
nsq_handler("orders", "mail")(takes_two)  # wrong
nsq_handler("orders", "mail", max_attempt=3)  # wrong
nsq_handler("orders", "mail", latency="low")  # wrong
nsq_handler("orders", "mail", nsqd_tcp_addresses="127.0.0.1")  # wrong: in the settings
nsq.handler("orders", "mail")(takes_nothing)  # wrong
nsq.handler("orders", "mail", concurency=2)  # wrong
nsq.handler("orders", "mail", concurrency="2")  # wrong
nsq.handler("orders", "mail", lookupd_http_addresses="127.0.0.1")  # wrong: in the config
publish_on_commit("orders", b"one", timeout="1s")  # wrong
nsq.publish("orders", 1)  # wrong
