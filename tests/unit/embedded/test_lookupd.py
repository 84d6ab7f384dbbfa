"""The embedded nsqlookupd without I/O: V1 sessions, registrations, the HTTP API."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.web import App
from gnsqsync.embedded.lookupd import LookupSession, identity
from gnsqsync.embedded.lookupd_server import LookupdHTTPApi
from gnsqsync.embedded.options import LookupdOptions
from gnsqsync.embedded.registrations import RegistrationDB

IDENTITY = identity("127.0.0.1", "host", 4160, 4161)
BODY = {
    "broadcast_address": "127.0.0.1",
    "hostname": "h",
    "http_port": 4151,
    "tcp_port": 4150,
    "version": "1.3.0",
}


def identify(body: object = BODY) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"IDENTIFY\n" + len(data).to_bytes(4, "big") + data


class World:
    """A database, its HTTP API and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.db = RegistrationDB()
        self.log = io.StringIO()
        self._log = Log("[nsqlookupd] ", stream=self.log)
        api = LookupdHTTPApi(self.db, LookupdOptions(), self._log, lambda: self.now)
        self._app = App(api.routes(), self._log)

    def connect(self, remote: str = "127.0.0.1:5000") -> LookupSession:
        return LookupSession(self.db, remote, IDENTITY, self._log)

    def nsqd(self, remote: str = "127.0.0.1:5000", **changes: Any) -> LookupSession:
        session = self.connect(remote)
        assert self.send(session, b"  V1" + identify({**BODY, **changes}))
        return session

    def send(self, session: LookupSession, data: bytes) -> list[bytes]:
        return frames(session.feed(data, self.now))

    def http(self, method: str, target: str) -> tuple[int, Any]:
        """Status and decoded body."""
        path, _, query = target.partition("?")
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "wsgi.input": io.BytesIO(),
        }
        status, _, body = self._app(environ)
        return int(status.split()[0]), json.loads(body) if body[:1] == b"{" else body

    def get(self, target: str) -> Any:
        status, body = self.http("GET", target)
        assert status == 200
        return body

    def post(self, target: str) -> Any:
        status, body = self.http("POST", target)
        return body if status == 200 else (status, body["message"])

    def producers(self, topic: str) -> list[str]:
        return [p["remote_address"] for p in self.get(f"/lookup?topic={topic}")["producers"]]

    def nodes(self) -> dict[str, dict[str, bool]]:
        """{remote address: {topic: tombstoned}}."""
        return {
            node["remote_address"]: dict(zip(node["topics"], node["tombstones"], strict=True))
            for node in self.get("/nodes")["producers"]
        }


def frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size])
        assert len(found[-1]) == size
        data = data[4 + size :]
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_bad_magic(world: World) -> None:
    session = world.connect()
    assert session.feed(b"  V", world.now) == b""
    assert world.send(session, b"2PING\n") == [b"E_BAD_PROTOCOL"]
    assert session.closed


def test_ping_before_identify(world: World) -> None:
    session = world.connect()
    assert world.send(session, b"  V1PING\n") == [b"OK"]
    assert world.send(session, b" PING \r\n") == [b"OK"]
    assert not session.closed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"FOO\n", b"E_INVALID invalid command FOO"),
        (b"\n", b"E_INVALID invalid command "),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"\xff\xfe\n", b"E_INVALID invalid command \xff\xfe"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    ],
)
def test_errors_before_identify(world: World, line: bytes, text: bytes) -> None:
    session = world.connect()
    assert world.send(session, b"  V1" + line + b"PING\n") == [text]
    assert session.closed


@pytest.mark.parametrize("command", [b"REGISTER", b"UNREGISTER"])
@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b"", b"E_INVALID %s insufficient number of params"),
        (b" bad*", b"E_BAD_TOPIC %s topic name 'bad*' is not valid"),
        (b"  t", b"E_BAD_TOPIC %s topic name '' is not valid"),
        (b" t bad*", b"E_BAD_CHANNEL %s channel name 'bad*' is not valid"),
        (b" t \xe9*", b"E_BAD_CHANNEL %s channel name '\xe9*' is not valid"),
    ],
)
def test_bad_names(world: World, command: bytes, rest: bytes, text: bytes) -> None:
    session = world.nsqd()
    assert world.send(session, command + rest + b"\n") == [text % command]
    assert session.closed


def test_identify(world: World) -> None:
    session = world.connect()
    (answer,) = world.send(session, b"  V1" + identify())
    assert json.loads(answer) == {
        "broadcast_address": "127.0.0.1",
        "hostname": "host",
        "http_port": 4161,
        "tcp_port": 4160,
        "version": "1.3.0",
    }
    assert world.send(session, identify()) == [b"E_INVALID cannot IDENTIFY again"]
    assert session.closed


def test_byte_by_byte(world: World) -> None:
    session = world.connect()
    data = b"  V1" + identify() + b"REGISTER t c\nPING\n"
    answers = [answer for i in range(len(data)) for answer in world.send(session, data[i : i + 1])]
    assert answers[1:] == [b"OK", b"OK"]
    assert world.producers("t") == ["127.0.0.1:5000"]


@pytest.mark.parametrize("name", ["broadcast_address", "tcp_port", "http_port", "version"])
def test_identify_lacks_a_field(world: World, name: str) -> None:
    for body in (
        {k: v for k, v in BODY.items() if k != name},
        {**BODY, name: None},
        {**BODY, name: type(BODY[name])()},
    ):
        session = world.connect()
        answers = world.send(session, b"  V1" + identify(body))
        assert answers == [b"E_BAD_BODY IDENTIFY missing fields"]
        assert session.closed


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"[]",
        b"1",
        b"",
        b"{} x",
        {**BODY, "tcp_port": "4150"},
        {**BODY, "tcp_port": 4150.0},
        {**BODY, "tcp_port": True},
        {**BODY, "tcp_port": 2**63},
        {**BODY, "version": 1},
        {**BODY, "remote_address": 1},
        b'{"tcp_port": NaN}',
    ],
)
def test_identify_that_cannot_be_decoded(world: World, body: object) -> None:
    session = world.connect()
    answers = world.send(session, b"  V1" + identify(body))
    assert answers == [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]


def test_identify_null_and_key_case(world: World) -> None:
    session = world.connect()
    assert world.send(session, b"  V1" + identify(b"null")) == [
        b"E_BAD_BODY IDENTIFY missing fields"
    ]
    body = {key.upper(): value for key, value in BODY.items()}
    session = world.connect()
    assert world.send(session, b"  V1" + identify({**body, "remote_address": "x", "more": []}))
    assert list(world.nodes()) == ["127.0.0.1:5000"]


def test_identify_with_a_negative_size(world: World) -> None:
    session = world.connect()
    assert world.send(session, b"  V1IDENTIFY\n\xff\xff\xff\xff") == [
        b"E_BAD_BODY IDENTIFY failed to read body"
    ]


def test_identify_cut_short(world: World) -> None:
    for sent, part in ((b"\0\0", b"body size"), (b"\0\0\0\5ab", b"body")):
        session = world.connect()
        assert session.feed(b"  V1IDENTIFY\n" + sent, world.now) == b""
        assert frames(session.eof()) == [b"E_BAD_BODY IDENTIFY failed to read " + part]
    session = world.connect()
    assert session.feed(b"  V1PIN", world.now) == b""
    assert session.eof() == b""


def test_register(world: World) -> None:
    session = world.nsqd()
    assert world.send(session, b"REGISTER t c\nREGISTER t c\nREGISTER u\n") == [b"OK"] * 3
    assert world.get("/lookup?topic=t") == {
        "channels": ["c"],
        "producers": [
            {
                "remote_address": "127.0.0.1:5000",
                "hostname": "h",
                "broadcast_address": "127.0.0.1",
                "tcp_port": 4150,
                "http_port": 4151,
                "version": "1.3.0",
            }
        ],
    }
    assert world.get("/topics") == {"topics": ["t", "u"]}
    assert world.get("/channels?topic=u") == {"channels": []}
    (node,) = world.get("/nodes")["producers"]
    assert list(node) == [
        "remote_address",
        "hostname",
        "broadcast_address",
        "tcp_port",
        "http_port",
        "version",
        "tombstones",
        "topics",
    ]
    assert (node["topics"], node["tombstones"]) == (["t", "u"], [False, False])


def test_unregister_channel(world: World) -> None:
    session = world.nsqd()
    other = world.nsqd("127.0.0.1:5001")
    world.send(session, b"REGISTER t c\nREGISTER t e#ephemeral\n")
    world.send(other, b"REGISTER t e#ephemeral\n")
    assert world.send(session, b"UNREGISTER t c\nUNREGISTER t e#ephemeral\n") == [b"OK", b"OK"]
    assert world.get("/channels?topic=t") == {"channels": ["c", "e#ephemeral"]}
    assert world.producers("t") == ["127.0.0.1:5000", "127.0.0.1:5001"]
    world.send(other, b"UNREGISTER t e#ephemeral\n")
    assert world.get("/channels?topic=t") == {"channels": ["c"]}


def test_unregister_topic(world: World) -> None:
    session = world.nsqd()
    world.send(session, b"REGISTER t c\nREGISTER e#ephemeral\n")
    assert world.send(session, b"UNREGISTER t\nUNREGISTER e#ephemeral\nUNREGISTER no\n") == [
        b"OK",
        b"OK",
        b"OK",
    ]
    assert world.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}
    assert world.get("/topics") == {"topics": ["t"]}
    assert world.nodes() == {"127.0.0.1:5000": {}}


def test_the_end_of_a_connection_keeps_all_names(world: World) -> None:
    session = world.nsqd()
    world.send(session, b"REGISTER t c\nREGISTER t e#ephemeral\nREGISTER f#ephemeral\n")
    session.end()
    assert world.get("/topics") == {"topics": ["t", "f#ephemeral"]}
    assert world.get("/lookup?topic=t") == {"channels": ["c", "e#ephemeral"], "producers": []}
    assert world.nodes() == {}


def test_a_producer_without_ping_is_hidden(world: World) -> None:
    session = world.nsqd()
    world.now += 200
    world.send(session, b"REGISTER t\n")
    world.now += 100
    assert world.producers("t") == ["127.0.0.1:5000"]
    world.now += 1
    assert world.producers("t") == []
    assert world.nodes() == {}
    world.send(session, b"PING\n")
    assert world.producers("t") == ["127.0.0.1:5000"]


def test_tombstone(world: World) -> None:
    session = world.nsqd()
    world.nsqd("127.0.0.1:5001", http_port=9)
    world.send(session, b"REGISTER t\nREGISTER u\n")
    assert world.post("/topic/tombstone?topic=t&node=127.0.0.1:4151") == b""
    assert world.producers("t") == []
    assert world.producers("u") == ["127.0.0.1:5000"]
    assert world.nodes()["127.0.0.1:5000"] == {"t": True, "u": False}
    world.send(session, b"REGISTER t\n")
    assert world.producers("t") == []
    world.now += 45
    assert world.producers("t") == ["127.0.0.1:5000"]
    world.post("/topic/tombstone?topic=t&node=127.0.0.1:4151")
    world.send(session, b"UNREGISTER t\nREGISTER t\n")
    assert world.producers("t") == ["127.0.0.1:5000"]
    assert world.post("/topic/tombstone?topic=no&node=x") == b""


def test_topics_and_channels_over_http(world: World) -> None:
    assert world.post("/topic/create?topic=t") == b""
    assert world.get("/lookup?topic=t") == {"channels": [], "producers": []}
    assert world.post("/channel/create?topic=u&channel=c") == b""
    assert world.get("/topics") == {"topics": ["t", "u"]}
    assert world.post("/channel/delete?topic=u&channel=c") == b""
    assert world.post("/channel/delete?topic=u&channel=c") == (404, "CHANNEL_NOT_FOUND")
    world.post("/channel/create?topic=u&channel=c")
    assert world.post("/topic/delete?topic=u") == b""
    assert world.http("GET", "/lookup?topic=u") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert world.get("/channels?topic=u") == {"channels": []}
    assert world.post("/topic/delete?topic=no*") == b""


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("GET /lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET /lookup?topic=no", 404, "TOPIC_NOT_FOUND"),
        ("GET /lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET /channels", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/create?topic=a*", 400, "INVALID_ARG_TOPIC"),
        ("POST /topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST /channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST /channel/create?topic=*&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST /channel/delete?topic=t&channel=*", 400, "INVALID_ARG_CHANNEL"),
        ("POST /topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("GET /topic/create", 405, "METHOD_NOT_ALLOWED"),
        ("GET /nope", 404, "NOT_FOUND"),
    ],
)
def test_http_errors(world: World, target: str, status: int, code: str) -> None:
    method, target = target.split()
    assert world.http(method, target) == (status, {"message": code})


def test_ping_info_and_debug(world: World) -> None:
    assert world.get("/ping") == b"OK"
    assert world.get("/info") == {"version": "1.3.0"}
    assert world.get("/debug") == {}
    world.send(world.nsqd(), b"REGISTER t c\n")
    world.post("/topic/tombstone?topic=t&node=127.0.0.1:4151")
    debug = world.get("/debug")
    assert list(debug) == ["channel:t:c", "client::", "topic:t:"]
    (entry,) = debug["topic:t:"]
    assert entry["id"] == "127.0.0.1:5000"
    assert entry["last_update"] == 1_000_000_000_000
    assert (entry["tombstoned"], entry["tombstoned_at"]) == (True, 1_000_000_000_000)
    assert debug["client::"][0]["tombstoned"] is False
    assert set(entry) == {
        "id",
        "hostname",
        "broadcast_address",
        "tcp_port",
        "http_port",
        "version",
        "last_update",
        "tombstoned",
        "tombstoned_at",
    }


def test_a_topic_that_only_has_a_channel_is_not_listed(world: World) -> None:
    session = world.nsqd()
    world.send(session, b"REGISTER f#ephemeral c\nUNREGISTER f#ephemeral\n")
    assert world.get("/topics") == {"topics": []}
    assert world.get("/channels?topic=f%23ephemeral") == {"channels": ["c"]}
    world.send(session, b"UNREGISTER f#ephemeral c\n")
    assert world.post("/channel/delete?topic=f%23ephemeral&channel=c") == b""
    assert world.get("/channels?topic=f%23ephemeral") == {"channels": []}
