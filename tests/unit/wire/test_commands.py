"""Commands as bytes: the vectors of docs/protocol/commands#test-vectors, and what is refused."""

from __future__ import annotations

import json
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqsync.errors import ConfigError
from gnsqsync.options import ConnectionOptions
from gnsqsync.wire import commands

ID = b"18a203f27f269000"


def split_body(command: bytes) -> tuple[bytes, bytes]:
    """Line and body of a command, after a look at its size field."""
    line, _, rest = command.partition(b"\n")
    size = int.from_bytes(rest[:4], "big")
    assert len(rest) == 4 + size
    return line, rest[4:]


def test_pub_vector() -> None:
    expected = bytes.fromhex("505542207474 0a 00000005 68656c6c6f")
    assert commands.pub("tt", b"hello") == expected
    assert commands.pub("tt", b"hello") == expected  # now from the cache of heads


def test_mpub_vector() -> None:
    expected = b"MPUB tt\n" + bytes.fromhex("0000000e 00000002 00000001 61 00000001 62")
    assert commands.mpub("tt", [b"a", b"b"]) == expected
    assert commands.mpub("tt", iter([b"a", b"b"])) == expected


def test_lines() -> None:
    assert commands.MAGIC_V2 == b"  V2"
    assert commands.NOP == b"NOP\n"
    assert commands.CLS == b"CLS\n"
    assert commands.sub("tt", "c#ephemeral") == b"SUB tt c#ephemeral\n"
    assert commands.rdy(0) == b"RDY 0\n"
    assert commands.rdy(2500) == b"RDY 2500\n"
    assert commands.touch(ID) == b"TOUCH 18a203f27f269000\n"
    assert commands.req(ID, 0) == b"REQ 18a203f27f269000 0\n"
    assert commands.req(ID, 90_000) == b"REQ 18a203f27f269000 90000\n"
    assert commands.dpub("tt", 1500, b"x") == b"DPUB tt 1500\n\0\0\0\x01x"
    assert commands.auth(b"s\n\xff") == b"AUTH\n\0\0\0\x03s\n\xff"


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8))
def test_mpub_holds_its_bodies(bodies: list[bytes]) -> None:
    line, body = split_body(commands.mpub("t", bodies))
    assert line == b"MPUB t"
    assert int.from_bytes(body[:4], "big") == len(bodies)
    rest, found = body[4:], []
    while rest:
        size = int.from_bytes(rest[:4], "big")
        found.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    assert found == bodies


@pytest.mark.parametrize("delay", [-1, commands.MAX_DELAY_MS + 1, float("nan"), float("inf")])
def test_delays_out_of_range(delay: int) -> None:
    with pytest.raises(ConfigError, match="ms; allowed is 0 to"):
        commands.req(ID, delay)
    with pytest.raises(ConfigError, match="ms; allowed is 0 to"):
        commands.dpub("t", delay, b"x")


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ä", "x" * 65, "a#b"])
def test_bad_names(name: str) -> None:
    for call in (
        lambda: commands.pub(name, b"x"),
        lambda: commands.mpub(name, [b"x"]),
        lambda: commands.dpub(name, 0, b"x"),
        lambda: commands.sub(name, "c"),
        lambda: commands.sub("t", name),
    ):
        with pytest.raises(ConfigError, match="name"):
            call()


def test_heads_of_pub_stay_bounded() -> None:
    for number in range(3000):
        assert commands.pub(f"topic{number}", b"x").startswith(b"PUB topic%d\n" % number)
    assert len(commands._pub_heads) <= commands._MAX_PUB_HEADS


def test_identify_says_only_what_is_set() -> None:
    options = ConnectionOptions(
        client_id="me",
        hostname="host",
        user_agent="agent",
        output_buffer_size=0,
        output_buffer_timeout=0,
    )
    assert commands.identify_body(options) == {
        "client_id": "me",
        "hostname": "host",
        "user_agent": "agent",
        "feature_negotiation": True,
        "heartbeat_interval": 30000,
    }


def test_identify_counts_in_whole_milliseconds() -> None:
    options = ConnectionOptions(
        heartbeat_interval=1.2345,
        msg_timeout=59.9999,
        output_buffer_timeout=0.0251,
        output_buffer_size=16384,
        sample_rate=7,
        snappy=True,
        topology_region="eu",
        topology_zone="eu-1",
        tls=ssl.create_default_context(),
    )
    body = commands.identify_body(options)
    assert body["heartbeat_interval"] == 1234
    assert body["msg_timeout"] == 60000
    assert body["output_buffer_timeout"] == 25
    assert body["output_buffer_size"] == 16384
    assert body["sample_rate"] == 7
    assert body["snappy"] is body["tls_v1"] is True
    assert "deflate" not in body and "deflate_level" not in body
    assert (body["topology_region"], body["topology_zone"]) == ("eu", "eu-1")
    # nsqd refuses 30000.0 (docs/protocol/handshake#identify-body).
    assert not [value for value in body.values() if isinstance(value, float)]


def test_identify_can_switch_buffering_off() -> None:
    body = commands.identify_body(
        ConnectionOptions(output_buffer_size=-1, output_buffer_timeout=-1)
    )
    assert (body["output_buffer_size"], body["output_buffer_timeout"]) == (-1, -1)


def test_identify_with_deflate() -> None:
    body = commands.identify_body(ConnectionOptions(deflate=True, deflate_level=3))
    assert (body["deflate"], body["deflate_level"]) == (True, 3)
    assert "snappy" not in body


def test_identify_is_json_with_a_size() -> None:
    body = {"client_id": "ä\udc80", "heartbeat_interval": 1000}
    line, data = split_body(commands.identify(body))
    assert line == b"IDENTIFY"
    assert json.loads(data) == body
