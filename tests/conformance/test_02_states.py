"""Rows 24 to 37: connection states and errors of single commands."""

from __future__ import annotations

import pytest

from tests.conformance.rows import UNKNOWN_ID
from tests.support.rawclient import Client, channel_stats
from tests.support.servers import Server, Site, unique


def subscribed(site: Site, server: Server) -> tuple[Client, str]:
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c")
    return client, topic


@pytest.mark.parametrize(
    "line", ["RDY 1", f"FIN {UNKNOWN_ID}", f"REQ {UNKNOWN_ID} 0", f"TOUCH {UNKNOWN_ID}", "CLS"]
)
def test_024_before_sub(site: Site, small: Server, line: str) -> None:
    client = site.client(small)
    client.command(line)
    client.fatal(f"E_INVALID cannot {line.split()[0]} in current state")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SUB", "E_INVALID SUB insufficient number of parameters"),
        ("SUB a", "E_INVALID SUB insufficient number of parameters"),
        ("SUB bad* c", 'E_BAD_TOPIC SUB topic name "bad*" is not valid'),
        ('SUB a"\\b c', 'E_BAD_TOPIC SUB topic name "a\\"\\\\b" is not valid'),
        ("SUB  c", 'E_BAD_TOPIC SUB topic name "" is not valid'),
        ("SUB a bad*", 'E_BAD_CHANNEL SUB channel name "bad*" is not valid'),
        ("SUB a ", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB a\tb\xff c", 'E_BAD_TOPIC SUB topic name "a\\tb\\xff" is not valid'),
    ],
)
def test_025_sub_parameters(site: Site, small: Server, line: str | bytes, text: str) -> None:
    client = site.client(small)
    client.command(line)
    client.fatal(text)


def test_026_sub_twice(site: Site, small: Server) -> None:
    client, topic = subscribed(site, small)
    client.command(f"SUB {topic} c")
    client.fatal("E_INVALID cannot SUB in current state")


def test_027_sub_without_heartbeats(site: Site, small: Server) -> None:
    client = site.client(small)
    client.identify(heartbeat_interval=-1)
    client.command(f"SUB {unique()} c")
    client.fatal("E_INVALID cannot SUB with heartbeats disabled")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ("101", "RDY count 101 out of range 0-100"),
        ("-1", "RDY could not parse count -1"),
        ("x", "RDY could not parse count x"),
    ],
)
def test_028_rdy_range(site: Site, small: Server, count: str, text: str) -> None:
    client, _ = subscribed(site, small)
    client.command(f"RDY {count}")
    client.fatal(f"E_INVALID {text}")


def test_029_rdy_without_parameter(site: Site, small: Server) -> None:
    client, topic = subscribed(site, small)
    client.command("RDY")

    def ready_count() -> int:
        (entry,) = channel_stats(small.http_address, topic, "c")["clients"]
        return int(entry["ready_count"])

    assert site.eventually(ready_count) == 1


def test_030_sub_without_identify(site: Site, small: Server) -> None:
    _, topic = subscribed(site, small)
    (entry,) = channel_stats(small.http_address, topic, "c")["clients"]
    assert (entry["client_id"], entry["hostname"], entry["state"]) == ("127.0.0.1", "127.0.0.1", 3)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("FIN", "FIN insufficient number of params"),
        ("TOUCH", "TOUCH insufficient number of params"),
        ("REQ", "REQ insufficient number of params"),
        (f"REQ {UNKNOWN_ID}", "REQ insufficient number of params"),
        ("FIN short", "invalid message ID"),
        ("TOUCH 0123456789abcdef0", "invalid message ID"),
        ("REQ short 0", "invalid message ID"),
        (f"REQ {UNKNOWN_ID} x", "REQ could not parse timeout x"),
        (f"REQ {UNKNOWN_ID} -1", "REQ could not parse timeout -1"),
    ],
)
def test_031_answer_parameters(site: Site, small: Server, line: str, text: str) -> None:
    client, _ = subscribed(site, small)
    client.command(line)
    client.fatal(f"E_INVALID {text}")


@pytest.mark.parametrize("message_id", [UNKNOWN_ID, "not_hexadecimal!"])
def test_032_unknown_message(site: Site, small: Server, message_id: str) -> None:
    client, _ = subscribed(site, small)
    for line in (f"FIN {message_id}", f"REQ {message_id} 0", f"TOUCH {message_id}"):
        client.command(line)
        name = line.split()[0]
        client.error(f"E_{name}_FAILED {name} {message_id} failed ID not in flight")
    client.alive()


def closing(site: Site, server: Server) -> Client:
    client, _ = subscribed(site, server)
    client.command("CLS")
    client.ok(b"CLOSE_WAIT")
    return client


def test_033_cls(site: Site, small: Server) -> None:
    closing(site, small).silent()


@pytest.mark.parametrize("line", ["RDY 1", "RDY x"])
def test_034_rdy_after_cls(site: Site, small: Server, line: str) -> None:
    client = closing(site, small)
    client.command(line)
    client.silent()
    client.alive()


def test_035_pub_after_cls(site: Site, small: Server) -> None:
    closing(site, small).publish(unique(), b"x")


def test_036_cls_twice(site: Site, small: Server) -> None:
    client = closing(site, small)
    client.command("CLS")
    client.fatal("E_INVALID cannot CLS in current state")


def test_037_consumer_limit(site: Site, small: Server) -> None:
    topic = unique()
    for _ in range(2):
        site.client(small).subscribe(topic, "c")
    third = site.client(small)
    third.command(f"SUB {topic} c")
    third.fatal(f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 2")
    site.client(small).subscribe(topic, "other")
