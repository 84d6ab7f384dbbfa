"""Tests with a real conversation: the fixtures come with gnsqsync, nothing is to be installed.

Run it with ``pytest embedded_in_tests.py``.
"""

import json
import queue

import pytest

from gnsqsync import NsqdHTTP, Reader, Writer


def test_what_is_published_arrives(nsqd):
    received = queue.SimpleQueue()
    with Writer(nsqd.tcp_address) as writer:
        writer.publish("orders", b"one")
    reader = Reader("orders", "test", received.put, nsqd_tcp_addresses=nsqd.tcp_address)
    with reader:
        assert received.get(timeout=10).body == b"one"


def place_order(address, number):
    """Stands for the code under test."""
    with Writer(address) as writer:
        writer.publish("orders", json.dumps({"number": number}))


def test_what_the_code_publishes(nsqd, nsq_messages):
    place_order(nsqd.tcp_address, 7)
    (message,) = nsq_messages("orders")
    assert message.json() == {"number": 7}


@pytest.mark.nsqd(max_msg_size=1000)
def test_a_flag_of_the_server(nsqd):
    assert NsqdHTTP(nsqd.http_address).get_config("max_msg_size") == 1000


@pytest.mark.nsq_cluster(nsqds=3)
def test_three_nsqds_and_an_nsqlookupd(nsq_cluster):
    received = queue.SimpleQueue()
    reader = Reader(
        "orders",
        "test",
        received.put,
        lookupd_http_addresses=nsq_cluster.lookupd_http_addresses,
        lookupd_poll_interval=0.1,
        max_in_flight=3,
    )
    with reader, Writer(nsq_cluster.nsqd_tcp_addresses) as writer:
        for number in range(6):
            writer.publish("orders", str(number))
        bodies = {received.get(timeout=20).body for _ in range(6)}
    assert bodies == {b"0", b"1", b"2", b"3", b"4", b"5"}


def test_a_restart(nsqd):
    with Writer(nsqd.tcp_address) as writer:
        writer.publish("orders", b"kept over a clean stop")
    nsqd.restart()
    with Reader("orders", "test", nsqd_tcp_addresses=nsqd.tcp_address) as reader:
        for message in reader:
            message.finish()
            assert message.body == b"kept over a clean stop"
            break
