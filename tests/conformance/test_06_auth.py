"""Rows 84 to 90: AUTH."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.rows import waiting
from tests.support.authserver import AuthServer, grant, rule
from tests.support.rawclient import RESPONSE, Client, mpub_body, post
from tests.support.servers import Server, Site, unique

EVERYTHING = rule(".*", [".*"], "subscribe", "publish")


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


@pytest.fixture
def auth_nsqd(site: Site, auth: AuthServer) -> Server:
    return site.nsqd(f"-auth-http-address={auth.address}")


def authorized(client: Client, secret: str) -> Any:
    client.command("AUTH", secret.encode())
    kind, data = client.answer()
    assert kind == RESPONSE, data
    return json.loads(data)


def test_084_auth_disabled(site: Site, small: Server) -> None:
    for data, text in (
        (b"AUTH\n\x00\x00\x00\x01x", "E_AUTH_DISABLED AUTH disabled"),
        (b"AUTH x\n\x00\x00\x00\x01x", "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n" + struct.pack(">i", 0), "E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n" + struct.pack(">i", 5001), "E_BAD_BODY AUTH body too big 5001 > 5000"),
    ):
        client = site.client(small)
        client.send(data)
        client.fatal(text)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("SUB t c", None),
        ("PUB t", b"x"),
        ("MPUB t", mpub_body([b"x"])),
        ("DPUB t 0", b"x"),
    ],
)
def test_085_auth_first(site: Site, auth_nsqd: Server, line: str, body: bytes | None) -> None:
    client = site.client(auth_nsqd)
    assert client.identify()["auth_required"] is True
    client.command(line, body)
    client.fatal(f"E_AUTH_FIRST AUTH required before {line.split()[0]}")


def test_086_auth_request(site: Site, auth: AuthServer, auth_nsqd: Server) -> None:
    auth.replies["a b&"] = 200, grant(EVERYTHING, identity="joe")
    asked = len(auth.targets)
    client = site.client(auth_nsqd)
    client.identify()
    answer = authorized(client, "a b&")
    assert auth.targets[asked:] == [
        "/auth?common_name=&remote_ip=127.0.0.1&secret=a+b%26&tls=false"
    ]
    assert answer == {
        "identity": "joe",
        "identity_url": "http://example.org/somebody",
        "permission_count": 1,
    }
    client.command("AUTH", b"a b&")
    client.fatal("E_INVALID AUTH already set")


def test_086_auth_without_identify(site: Site, auth: AuthServer, auth_nsqd: Server) -> None:
    auth.replies["plain"] = 200, grant(EVERYTHING, EVERYTHING)
    client = site.client(auth_nsqd)
    assert authorized(client, "plain")["permission_count"] == 2
    client.publish(unique(), b"x")


@pytest.mark.parametrize(
    ("line", "body", "refusal"),
    [
        ("PUB an_open_topic", b"x", None),
        ("SUB an_open_topic anything", None, None),
        ("MPUB an_open_topic", mpub_body([b"x"]), None),
        ("DPUB an_open_topic 0", b"x", None),
        ("SUB partly c", None, None),
        ("SUB partly d", None, '"partly" "d"'),
        ("PUB partly", b"x", '"partly" ""'),
        ("DPUB partly 0", b"x", '"partly" ""'),
        ("MPUB partly", mpub_body([b"x"]), '"partly" ""'),
        ("PUB nolist", b"x", '"nolist" ""'),
        ("PUB other", b"x", '"other" ""'),
        ("SUB other c", None, '"other" "c"'),
        ("PUB readonly", b"x", '"readonly" ""'),
    ],
)
def test_087_authorizations(
    site: Site,
    auth: AuthServer,
    auth_nsqd: Server,
    line: str,
    body: bytes | None,
    refusal: str | None,
) -> None:
    auth.replies["rules"] = (
        200,
        grant(
            rule("open", [".*"], "subscribe", "publish"),
            rule("^partly$", ["^c$"], "subscribe", "publish"),
            rule("^nolist$", [], "subscribe", "publish"),
            rule("^readonly$", [".*"], "subscribe"),
        ),
    )
    client = site.client(auth_nsqd)
    authorized(client, "rules")
    client.command(line, body)
    if refusal is None:
        client.ok()
    else:
        client.fatal(f"E_UNAUTHORIZED AUTH failed for {line.split()[0]} on {refusal}")


@pytest.mark.parametrize(
    ("reply", "count"),
    [
        (
            {
                "TTL": 60,
                "Identity": "joe",
                "Authorizations": [
                    {"Topic": "^t", "CHANNELS": [".*"], "Permissions": ["publish"]},
                ],
            },
            1,
        ),
        (grant(EVERYTHING, None, identity="joe"), 2),  # type: ignore[arg-type]
        (grant({**EVERYTHING, "topic": None, "channels": [None]}, identity="joe"), 1),
        (grant(EVERYTHING, identity="joe") | {"identity_url": None, "expires": None}, 1),
        (grant(EVERYTHING, identity="joe") | {"expires": "2030-01-01T00:00:00.5Z"}, 1),
    ],
    ids=["case", "null entry", "null patterns", "null", "time"],
)
def test_086_auth_answer_as_go_reads_it(
    site: Site, auth: AuthServer, auth_nsqd: Server, reply: dict[str, Any], count: int
) -> None:
    auth.replies["tolerant"] = 200, reply
    client = site.client(auth_nsqd)
    answer = authorized(client, "tolerant")
    assert (answer["identity"], answer["permission_count"]) == ("joe", count)
    client.publish(unique(), b"x")


@pytest.mark.parametrize(
    ("status", "reply", "text"),
    [
        (200, grant(), "E_UNAUTHORIZED AUTH no authorizations found"),
        (500, grant(EVERYTHING), "E_AUTH_FAILED AUTH failed"),
        (200, grant(EVERYTHING, ttl=0), "E_AUTH_FAILED AUTH failed"),
        (200, grant(rule(".*", [".*"], "publish", "dance")), "E_AUTH_FAILED AUTH failed"),
        (200, grant(rule("(", [".*"], "publish")), "E_AUTH_FAILED AUTH failed"),
        (200, grant(EVERYTHING) | {"expires": 60}, "E_AUTH_FAILED AUTH failed"),
        (200, grant(EVERYTHING) | {"expires": "soon"}, "E_AUTH_FAILED AUTH failed"),
    ],
    ids=["none", "status", "ttl", "permission", "regex", "seconds", "no time"],
)
def test_088_auth_refused(
    site: Site,
    auth: AuthServer,
    auth_nsqd: Server,
    status: int,
    reply: dict[str, Any],
    text: str,
) -> None:
    auth.replies["refused"] = status, reply
    client = site.client(auth_nsqd)
    client.command("AUTH", b"refused")
    client.fatal(text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?!x)",
        r"(?=x)",
        r"(?<!x)",
        r"(?<=x)",
        r"(?#x)",
        r"(a)\1",
        r"(?P<a>x)(?P=a)",
        r"a\Z",
        "a++",
        "a{2}+",
        "a**",
        "*",
    ],
)
def test_088_no_regular_expression_for_go(
    site: Site, auth: AuthServer, auth_nsqd: Server, pattern: str
) -> None:
    auth.replies["regex"] = 200, grant(EVERYTHING, rule("t", [pattern], "publish"))
    client = site.client(auth_nsqd)
    client.command("AUTH", b"regex")
    client.fatal("E_AUTH_FAILED AUTH failed")


@pytest.mark.parametrize(
    "pattern",
    [
        r"^abc-1\z",
        r"^[[:alpha:]]+-[[:digit:]]$",
        r"^[[:lower:]b-]+1$",
        r"^\Qabc-\E1$",
        r"^a(?P<x>b)c-1$",
        r"^a(?<x>b)c-1$",
        r"^[]a-z-]+\d$",
        r"^[^\]A]+$",
        r"^\w\Bbc\-1$",
        r"a}?b",
        r"^.{5}$",
        "",
    ],
)
def test_087_regular_expressions_of_go(
    site: Site, auth: AuthServer, auth_nsqd: Server, pattern: str
) -> None:
    auth.replies["regex"] = 200, grant(rule(pattern, [".*"], "publish"))
    client = site.client(auth_nsqd)
    authorized(client, "regex")
    client.publish("abc-1", b"x")
    if pattern:
        client.command("PUB ABC-1x", b"x")
        client.fatal('E_UNAUTHORIZED AUTH failed for PUB on "ABC-1x" ""')


@waiting
def test_089_expiry(site: Site) -> None:
    with AuthServer() as auth:
        auth.replies["s"] = 200, grant(EVERYTHING, ttl=3)
        topic = unique()
        client = site.client(site.own_nsqd(f"-auth-http-address={auth.address}"))
        authorized(client, "s")
        client.publish(topic, b"x", b"x")
        assert len(auth.targets) == 1
        site.sleep(3.2)
        client.publish(topic, b"x", b"x")
        assert len(auth.targets) == 2
        auth.replies["s"] = 200, grant(rule("^other$", [".*"], "publish"))
        site.sleep(3.2)
        client.command(f"PUB {topic}", b"x")
        client.fatal(f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""')
        assert len(auth.targets) == 3


@waiting
def test_090_expired_subscriber(site: Site) -> None:
    with AuthServer() as auth:
        auth.replies["s"] = 200, grant(EVERYTHING, ttl=1)
        topic = unique()
        server = site.own_nsqd(f"-auth-http-address={auth.address}")
        client = site.client(server)
        authorized(client, "s")
        client.subscribe(topic, "c", 1)
        auth.replies.clear()
        site.sleep(1.5)
        assert post(server.http_address, f"/pub?topic={topic}", b"x").body == b"OK"
        client.fin(client.message())
        assert post(server.http_address, f"/pub?topic={topic}", b"y").body == b"OK"
        assert client.message().body == b"y"
        assert len(auth.targets) == 1
