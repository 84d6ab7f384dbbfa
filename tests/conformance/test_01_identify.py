"""Rows 1 to 23: magic, framing, IDENTIFY."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tests.support.rawclient import RESPONSE, Client
from tests.support.scripted import NEGOTIATED
from tests.support.servers import Server, Site, unique

ANSWER = NEGOTIATED | {"max_rdy_count": 100}


def identify(site: Site, server: Server, body: bytes) -> Client:
    client = site.client(server)
    client.command("IDENTIFY", body)
    return client


def accepted(site: Site, server: Server, field: str, value: int) -> dict[str, Any]:
    return site.client(server).identify(**{field: value})


def refused(site: Site, server: Server, field: str, value: int, text: str) -> None:
    client = identify(site, server, json.dumps({field: value}).encode())
    client.fatal(f"E_BAD_BODY IDENTIFY {text} ({value}) is invalid")


def test_001_no_answer_to_magic(site: Site, small: Server) -> None:
    site.client(small).silent(0.3)


def test_002_wrong_magic(site: Site, small: Server) -> None:
    site.client(small, magic=b"  V1").fatal("E_BAD_PROTOCOL")


def test_003_nop_has_no_answer(site: Site, small: Server) -> None:
    client = site.client(small)
    client.command("NOP")
    client.silent()
    client.alive()


@pytest.mark.parametrize("line", ["NOP\r", "NOP x y"])
def test_004_nop_with_more(site: Site, small: Server, line: str) -> None:
    client = site.client(small)
    client.command(line)
    client.silent()
    client.alive()


def test_005_unknown_command(site: Site, small: Server) -> None:
    client = site.client(small)
    client.command("FOO bar")
    client.fatal("E_INVALID invalid command FOO")


@pytest.mark.parametrize("line", ["nop", ""])
def test_006_names_are_case_sensitive(site: Site, small: Server, line: str) -> None:
    client = site.client(small)
    client.command(line)
    client.fatal(f"E_INVALID invalid command {line}")


def test_007_longest_line(site: Site, small: Server) -> None:
    client = site.client(small)
    client.command("w" * 16383)
    client.fatal("E_INVALID invalid command " + "w" * 16383)
    client = site.client(small)
    client.send(b"w" * 16385)
    client.closed()


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("IDENTIFY a b", b"{}"),
        ("IDENTIFY", b"null"),
        ("IDENTIFY", b'{"short_id": "x", "long_id": [1], "client_id": null, "msg_timeout": null}'),
        ("IDENTIFY", b'{"Client_ID": "x", "HOSTNAME": "\xff"}'),
    ],
)
def test_008_tolerant_identify(site: Site, small: Server, line: str, body: bytes) -> None:
    client = site.client(small)
    client.command(line, body)
    client.ok()
    client.alive()


def test_009_negotiated_answer(site: Site, small: Server) -> None:
    answer = site.client(small).identify()
    assert list(answer.items()) == list(ANSWER.items())
    assert [type(value) for value in answer.values()] == [type(v) for v in ANSWER.values()]


def test_010_identify_again(site: Site, small: Server) -> None:
    client = site.client(small)
    client.identify(msg_timeout=1000)
    assert client.identify(msg_timeout=5000)["msg_timeout"] == 5000
    client.alive()


def test_011_identify_after_sub(site: Site, small: Server) -> None:
    client = site.client(small)
    client.subscribe(unique(), "c")
    client.command("IDENTIFY", b"{}")
    client.fatal("E_INVALID cannot IDENTIFY in current state")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "invalid body size 0"), (-1, "invalid body size -1"), (5001, "body too big 5001 > 5000")],
)
def test_012_identify_size(site: Site, small: Server, size: int, text: str) -> None:
    client = site.client(small)
    client.send(b"IDENTIFY\n" + struct.pack(">i", size))
    client.fatal(f"E_BAD_BODY IDENTIFY {text}")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"x",
        b'"s"',
        b"1",
        b"{} x",
        b'{"heartbeat_interval": "1000"}',
        b'{"heartbeat_interval": 1000.0}',
        b'{"msg_timeout": 3e4}',
        b'{"tls_v1": 1}',
        b'{"client_id": 1}',
        b'{"client_id": 1, "client_id": "x"}',
    ],
)
def test_013_identify_types(site: Site, small: Server, body: bytes) -> None:
    client = identify(site, small, body)
    client.fatal("E_BAD_BODY IDENTIFY failed to decode JSON body")


def test_014_heartbeat_interval(site: Site, small: Server) -> None:
    for value in (-1, 0, 1000, 60000):
        accepted(site, small, "heartbeat_interval", value)
    for value in (-2, 1, 999, 60001):
        refused(site, small, "heartbeat_interval", value, "heartbeat interval")


def test_015_output_buffer_size(site: Site, small: Server) -> None:
    for value, effective in ((-1, 1), (0, 16384), (64, 64), (65536, 65536)):
        answer = accepted(site, small, "output_buffer_size", value)
        assert answer["output_buffer_size"] == effective
    for value in (-2, 1, 63, 65537):
        refused(site, small, "output_buffer_size", value, "output buffer size")


def test_016_output_buffer_timeout(site: Site, small: Server) -> None:
    for value, effective in ((-1, 0), (0, 250), (25, 25), (30000, 30000)):
        answer = accepted(site, small, "output_buffer_timeout", value)
        assert answer["output_buffer_timeout"] == effective
    for value in (-2, 1, 24, 30001):
        refused(site, small, "output_buffer_timeout", value, "output buffer timeout")


def test_017_sample_rate(site: Site, small: Server) -> None:
    for value in (0, 1, 99):
        assert accepted(site, small, "sample_rate", value)["sample_rate"] == value
    for value in (-1, 100):
        refused(site, small, "sample_rate", value, "sample rate")


def test_018_msg_timeout(site: Site, small: Server) -> None:
    for value, effective in ((0, 60000), (1000, 1000), (900000, 900000)):
        assert accepted(site, small, "msg_timeout", value)["msg_timeout"] == effective
    for value in (-1, 1, 999, 900001):
        refused(site, small, "msg_timeout", value, "msg timeout")


def test_019_no_output_buffer(site: Site, small: Server) -> None:
    answer = accepted(site, small, "output_buffer_size", -1)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


def test_020_deflate_and_snappy(site: Site, small: Server) -> None:
    body = b'{"feature_negotiation": true, "deflate": true, "snappy": true}'
    client = identify(site, small, body)
    client.fatal("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


def test_018_msg_timeout_twice(site: Site, small: Server) -> None:
    # The last one counts, except that null leaves the one before.
    body = b'{"feature_negotiation": true, "msg_timeout": 1000, "Msg_Timeout": 2000, %s}'
    for last, effective in ((b'"msg_timeout": 3000', 3000), (b'"msg_timeout": null', 2000)):
        kind, data = identify(site, small, body % last).answer()
        assert (kind, json.loads(data)["msg_timeout"]) == (RESPONSE, effective)


@pytest.mark.parametrize(("asked", "level"), [(0, 6), (1, 1), (6, 6), (9, 6), (-3, 6)])
def test_021_deflate_level(site: Site, small: Server, asked: int, level: int) -> None:
    answer = site.client(small).identify(deflate=True, deflate_level=asked)
    assert (answer["deflate"], answer["deflate_level"]) == (True, level)


def test_022_tls_without_certificate(site: Site, small: Server) -> None:
    client = site.client(small)
    assert client.identify(tls_v1=True)["tls_v1"] is False
    client.alive()


def test_023_no_feature_negotiation(site: Site, small: Server) -> None:
    client = identify(site, small, b'{"snappy": true, "tls_v1": true}')
    client.ok()
    client.alive()
