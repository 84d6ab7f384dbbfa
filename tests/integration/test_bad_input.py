"""Errors that a user meets: each names what was wrong and what is allowed, before it is sent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gnsqsync import ConnectionOptions, Reader, Writer
from gnsqsync.errors import ConfigError, NotSent, ProtocolError
from tests.integration.conftest import Client, url
from tests.support.servers import Server, Site

ALLOWED_NAME = "1 to 64 of the characters"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda w: w.publish("bad topic", b"x"), ALLOWED_NAME),
        (lambda w: w.publish("t\n", b"x"), ALLOWED_NAME),
        (lambda w: w.publish("", b"x"), ALLOWED_NAME),
        (lambda w: w.publish("t" * 65, b"x"), ALLOWED_NAME),
        (lambda w: w.publish("t#other", b"x"), ALLOWED_NAME),
        (lambda w: w.publish(b"t", b"x"), "topic name is bytes; it must be a str"),
        (lambda w: w.publish(["t"], b"x"), "topic name is list; it must be a str"),
        (lambda w: w.publish("t", b""), "body is empty; nsqd accepts 1 to 1048576 bytes"),
        (lambda w: w.publish("t", ""), "body is empty"),
        (lambda w: w.publish("t", b"x" * 1048577), "1048577 bytes; max_msg_size allows 1048576"),
        (lambda w: w.publish("t", 5), "body is int; it must be bytes or str"),
        (lambda w: w.publish("t", None), "body is NoneType"),
        # What is left of bytes that were no UTF-8, as in an argument of a command.
        (lambda w: w.publish("t", "caf\udce9"), "body has a lone surrogate at 3; .* give bytes"),
        (lambda w: w.publish("t", b"x", defer=-1), "defer is -1 seconds; allowed is 0 to 3600"),
        (lambda w: w.publish("t", b"x", defer=3601), "allowed is 0 to 3600"),
        (lambda w: w.publish("t", b"x", defer="1"), "must be a number of seconds"),
        (lambda w: w.publish("t", b"x", timeout=-1), "timeout is -1 seconds"),
        (lambda w: w.publish_many("t", []), "bodies is empty"),
        (lambda w: w.publish_many("t", b"abc"), "give a list of them"),
        (lambda w: w.publish_many("t", [b"a", b""]), r"bodies\[1\] is empty"),
        (lambda w: w.publish_many("t", [b"a", 7]), r"bodies\[1\] is int"),
        (lambda w: w.publish_many("t", ["a", "\udce9"]), r"bodies\[1\] has a lone surrogate"),
    ],
)
def test_publish_refuses_before_anything_is_sent(call: Any, text: str) -> None:
    # Nobody listens there: an error that came later would be NotSent.
    writer = Writer("127.0.0.1:1")
    with pytest.raises(ConfigError, match=text):
        call(writer)
    assert not writer.is_connected


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("", "at least one address"),
        ("http://127.0.0.1:4151", "has no scheme, write host:port"),
        ("127.0.0.1:99999", "allowed is 1 to 65535"),
        ("127.0.0.1:abc", "allowed is 1 to 65535"),
        ("::1", "put an IPv6 address in brackets"),
        ("[::1", "is not valid"),
        ("unix://relative", "absolute path"),
        (":4150", "no valid host"),
        (4150, "give a str or a list"),
        ([4150], "it must be host"),
    ],
)
def test_bad_addresses(address: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Writer(address)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"heartbeat_interval": 0.5}, "heartbeat_interval is 0.5 seconds; allowed is 1 to 60"),
        ({"heartbeat_interval": 61}, "allowed is 1 to 60"),
        ({"msg_timeout": 0.5}, "msg_timeout is 0.5 seconds; allowed is 1 to 900"),
        ({"msg_timeout": 901}, "allowed is 1 to 900"),
        ({"sample_rate": 100}, "sample_rate is 100; allowed is 0 to 99"),
        ({"sample_rate": 1.5}, "it must be an int"),
        ({"output_buffer_size": 63}, "allowed is 64 to 65536 or -1, 0"),
        ({"output_buffer_timeout": 0.001}, "allowed is 0.025 to 30"),
        ({"output_buffer_timeout": 31}, "allowed is 0.025 to 30"),
        ({"deflate_level": 0}, "allowed is 1 to 9"),
        ({"deflate": True, "output_buffer_size": -1}, "leave the buffer on"),
        ({"connect_timeout": 0}, "connect_timeout is 0 seconds"),
        ({"tls": "yes"}, "must be True, False or an ssl.SSLContext"),
        ({"tls_ca_file": "/nowhere/ca.pem"}, "is not a file"),
        ({"tls_key_file": __file__}, "tls_key_file without tls_cert_file"),
        ({"auth_secret": ""}, "non-empty"),
        ({"client_id": 5}, "must be a str"),
        ({"address_map": 5}, "dict or a callable"),
        ({"max_frame_size": 10}, "allowed is 1024 to"),
    ],
)
def test_connection_options_out_of_range(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ConnectionOptions(**options)
    with pytest.raises(ConfigError, match=text):
        Writer(**options)
    with pytest.raises(ConfigError, match=text):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1", **options)


async def coroutine(message: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a b"}, "topic name"),
        ({"channel": ""}, "channel name"),
        ({"handler": "print"}, "callable that takes a message"),
        ({"handler": coroutine}, "handler is a coroutine function: its code would never run"),
        ({"on_giving_up": coroutine}, "on_giving_up is a coroutine function"),
        (
            {"on_giving_up": lambda message: None},
            "too many positional arguments; it must be a callable that takes the message and the",
        ),
        (
            {"on_giving_up": [].append},
            r"list\.append\(object, /\): too many positional arguments; ",
        ),
        (
            {"handler": lambda: None},
            "too many positional arguments; it must be a callable that takes a",
        ),
        (
            {"handler": lambda message, reader: None},
            "missing a required argument: 'reader'; it must",
        ),
        ({"on_giving_up": "drop"}, "on_giving_up is 'drop'; it must be 'discard' or a callable"),
        (
            {"on_giving_up": "discard", "dead_letter_topic": "dead"},
            "dead_letter_topic is 'dead' and on_giving_up is 'discard'; give one of them",
        ),
        ({"dead_letter_topic": "t"}, "dead_letter_topic is the Reader's own topic 't'"),
        ({"max_deliveries": 70000}, "max_deliveries is 70000; allowed is 0 to 65535"),
        (
            {"max_deliveries": 50},
            "max_deliveries is 50; it needs dead_letter_topic or on_giving_up",
        ),
        ({"nsqd_tcp_addresses": ()}, "at least one address"),
        ({"max_in_flight": -1}, "max_in_flight is -1; allowed is 0 or more"),
        ({"concurrency": 0}, "concurrency is 0; allowed is 1 or more"),
        ({"max_attempts": 70000}, "allowed is 0 to 65535"),
        ({"requeue_delay": -1}, "requeue_delay is -1 seconds"),
        ({"backoff_strategy": "linear"}, "'exponential', 'full_jitter' or a callable"),
        ({"lookupd_poll_jitter": 2}, "must be a number, 0 to 1"),
        ({"lookupd_http_addresses": "ftp://x"}, "write http://host:port"),
        ({"latency": "low"}, "'adaptive' or 'throughput'"),
        ({"auto_touch": 1}, "auto_touch is 1; it must be True or False"),
        ({"backoff_on_fin_failed": "yes"}, "it must be True or False"),
        ({"dead_letter_topic": "no no"}, "topic name"),
        ({"max_inflight": 5}, "did you mean"),
        ({"heartbeat": 5}, "no option 'heartbeat'; did you mean 'heartbeat_interval'"),
    ],
)
def test_reader_options(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "topic": "t",
        "channel": "c",
        "handler": print,
        "nsqd_tcp_addresses": "127.0.0.1",
        **options,
    }
    with pytest.raises(ConfigError, match=text):
        Reader(**given)


def test_writer_options() -> None:
    for options, text in (
        ({"policy": "random"}, "'round_robin' or 'failover'"),
        ({"publish_timeout": 0}, "publish_timeout is 0 seconds"),
        ({"max_msg_size": 0}, "allowed is 1 or more"),
        ({"options": ConnectionOptions(), "snappy": True}, "both given"),
        ({"options": {"snappy": True}}, "must be ConnectionOptions"),
    ):
        with pytest.raises(ConfigError, match=text):
            Writer(**options)


def test_the_http_port_is_named(client: Client, nsqd: Server, topic: str) -> None:
    writer = Writer(url(nsqd).removeprefix("http://"), runtime=client.world.runtime)
    with pytest.raises(NotSent, match="HTTP") as caught:
        writer.publish(topic, b"x", timeout=1)
    assert isinstance(caught.value.causes[0], ProtocolError)
    assert "TCP port" in str(caught.value)
    writer.close()


def test_a_message_larger_than_nsqds_limit_is_refused_by_nsqd(
    client: Client, site: Site, topic: str
) -> None:
    from gnsqsync.errors import BadMessage, Refused

    nsqd = site.nsqd("-max-msg-size=1000")
    writer = client.writer(nsqd)
    with pytest.raises(Refused, match="message too big 1001 > 1000") as caught:
        writer.publish(topic, b"x" * 1001)
    assert isinstance(caught.value.error, BadMessage)
    writer.publish(topic, b"the next one is fine")


def test_the_consumer_limit_is_told(
    client: Client, site: Site, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = site.nsqd("-max-channel-consumers=1")
    first = client.consume(topic, lambda m: None, nsqd)
    client.world.eventually(lambda: first.stats().connections)
    client.consume(topic, lambda m: None, nsqd)
    client.world.eventually(lambda: "exceeds limit of 1" in caplog.text)


def test_constructors_import_and_start_nothing() -> None:
    program = (
        "import sys, threading, gnsqsync\n"
        "assert not {'gevent', 'requests', 'snappy'} & set(sys.modules), sys.modules\n"
        "w = gnsqsync.Writer('127.0.0.1:1')\n"
        "r = gnsqsync.Reader('t', 'c', print, nsqd_tcp_addresses='127.0.0.1:1')\n"
        "assert 'gevent' not in sys.modules\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
