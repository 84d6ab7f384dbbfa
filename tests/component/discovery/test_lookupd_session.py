"""A session of the user's for what Readers and Writers ask of nsqlookupds: used, apart, closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from gnsqsync import Reader, Writer
from gnsqsync.errors import ConfigError, ConnectionLost, NotSent
from tests.component.conftest import Client
from tests.support.ports import REFUSED_PORT
from tests.support.scripted import ScriptedNsqd
from tests.support.serving import FakeServer, fake_server
from tests.support.worlds import World

OFTEN = 0.05


class Session(requests.Session):
    """Notes what becomes of it; two callers at once are one too many."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.headers["X-Plugin"] = "mine"
        self.busy = threading.Lock()
        self.shared = False
        self.closed = 0
        self.asked: set[str] = set()

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        self.asked.add(url.partition("?")[0])
        self.shared |= not self.busy.acquire(blocking=False)
        try:
            return super().request(method, url, *args, **options)
        finally:
            self.busy.release()

    def close(self) -> None:
        self.closed += 1
        super().close()


class Sessions:
    """What a user would give: a function that makes one."""

    def __init__(self) -> None:
        self.made: list[Session] = []

    def __call__(self) -> Session:
        self.made.append(Session())
        return self.made[-1]


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with ScriptedNsqd() as nsqd:
        yield nsqd


@pytest.fixture
def two_lookupds(nsqd: ScriptedNsqd) -> Iterator[tuple[FakeServer, FakeServer]]:
    host, port = nsqd.address
    producer = {"broadcast_address": host, "tcp_port": port, "http_port": REFUSED_PORT}
    with fake_server() as one, fake_server() as two:
        for server in (one, two):
            server.answer({"channels": [], "producers": [producer]})
        yield one, two


def url(lookupd: FakeServer, path: str) -> str:
    return f"http://{lookupd.address}{path}"


def test_each_poll_thread_has_a_session_that_is_closed_with_it(
    client: Client,
    world: World,
    nsqd: ScriptedNsqd,
    two_lookupds: tuple[FakeServer, FakeServer],
    sessions: Sessions,
) -> None:
    one, two = two_lookupds
    reader = client.reader(
        print,
        lookupd_http_addresses=one.address,
        lookupd_poll_interval=OFTEN,
        lookupd_session=sessions,
        lookupd_authorization="geheim",
    )
    assert not sessions.made
    reader.start(block=False)
    reader.add_lookupd(two.address)
    world.eventually(lambda: len(one.requests) >= 3 and len(two.requests) >= 3)
    world.eventually(lambda: nsqd.received("SUB"))
    assert [session.asked for session in sessions.made] == [
        {url(one, "/lookup")},
        {url(two, "/lookup")},
    ]
    for request in (one.requests[0], two.requests[0]):
        assert request["headers"]["X-Plugin"] == "mine"
        # What is ours is sent all the same.
        assert request["headers"]["Authorization"] == "Bearer geheim"
        assert request["headers"]["User-Agent"].startswith("gnsqsync/")
    reader.remove_lookupd(two.address)
    world.eventually(lambda: sessions.made[1].closed)
    assert not sessions.made[0].closed
    reader.stop()
    assert reader.join(15.0) is not None
    assert [session.closed for session in sessions.made] == [1, 1]
    assert not any(session.shared for session in sessions.made)


def test_ensure_channel_has_sessions_of_its_own(
    client: Client,
    nsqd: ScriptedNsqd,
    two_lookupds: tuple[FakeServer, FakeServer],
    sessions: Sessions,
) -> None:
    reader = client.reader(
        print,
        lookupd_http_addresses=[lookupd.address for lookupd in two_lookupds],
        lookupd_session=sessions,
    )
    reader.ensure_channel()
    assert [session.asked for session in sessions.made] == [
        {url(lookupd, "/channel/create"), url(lookupd, "/lookup")} for lookupd in two_lookupds
    ]
    assert [session.closed for session in sessions.made] == [1, 1]


def test_a_writer_asks_with_it(
    client: Client,
    world: World,
    two_lookupds: tuple[FakeServer, FakeServer],
    sessions: Sessions,
) -> None:
    writer = client.writer(
        lookupd_http_addresses=[lookupd.address for lookupd in two_lookupds],
        lookupd_session=sessions,
    )
    for lookupd in two_lookupds:
        lookupd.answer({"producers": []})
    assert not sessions.made
    with pytest.raises(NotSent):
        writer.connect(timeout=0.3)
    assert [session.asked for session in sessions.made] == [
        {url(lookupd, "/nodes")} for lookupd in two_lookupds
    ]
    writer.close()
    world.eventually(lambda: [session.closed for session in sessions.made] == [1, 1])


@pytest.mark.reality("urllib3 dials a proxy by itself")
def test_a_proxy_of_the_session_is_used(
    client: Client, world: World, nsqd: ScriptedNsqd, two_lookupds: tuple[FakeServer, FakeServer]
) -> None:
    proxy, _ = two_lookupds

    def through_the_proxy() -> requests.Session:
        session = requests.Session()
        session.proxies = {"http": f"http://{proxy.address}"}
        return session

    # Nobody can listen there, and nobody knows that name.
    client.consume(
        print,
        lookupd_http_addresses="http://lookupd.invalid:1/path",
        lookupd_session=through_the_proxy,
    )
    world.eventually(lambda: nsqd.received("SUB"))
    assert proxy.requests[0]["headers"]["Host"] == "lookupd.invalid:1"


@pytest.mark.parametrize("session", [requests.Session(), "x", 7], ids=["session", "str", "int"])
@pytest.mark.parametrize(
    "make",
    [
        lambda given: Reader("t", "c", lookupd_http_addresses="h", lookupd_session=given),
        lambda given: Writer(lookupd_http_addresses="h", lookupd_session=given),
    ],
    ids=["reader", "writer"],
)
def test_a_session_is_not_a_function(make: Callable[[Any], object], session: Any) -> None:
    with pytest.raises(ConfigError, match="a function that takes nothing and returns a new"):
        make(session)


@pytest.mark.parametrize("made", [None, "x"])
def test_a_factory_must_return_a_session(client: Client, nsqd: ScriptedNsqd, made: Any) -> None:
    """The caller is told, and nothing has been started."""
    name = type(made).__name__
    text = f"lookupd_session returned a {name}; it must return a new requests.Session"
    options: dict[str, Any] = {"lookupd_http_addresses": "h", "lookupd_session": lambda: made}
    reader = client.reader(print, nsqd, **options)
    for call in (reader.start, reader.ensure_channel, client.writer(**options).connect):
        with pytest.raises(ConfigError, match=text):
            call()
    assert not nsqd.connections


def test_an_error_of_the_factory_is_raised(client: Client, two_lookupds: Any) -> None:
    def broken() -> requests.Session:
        raise LookupError("no such secret")

    one, two = two_lookupds
    made: list[Session] = []

    def second_fails() -> requests.Session:
        if made:
            raise LookupError("no such secret")
        made.append(Session())
        return made[0]

    reader = client.reader(print, lookupd_http_addresses=one.address, lookupd_session=broken)
    with pytest.raises(LookupError, match="no such secret"):
        reader.start()
    reader = client.consume(print, lookupd_http_addresses=one.address, lookupd_session=second_fails)
    with pytest.raises(LookupError, match="no such secret"):
        reader.add_lookupd(two.address)


def test_a_session_that_raises_makes_no_channel(client: Client) -> None:
    """And whoever waits for the channel hears of it, whatever it raises."""

    class Unready(Session):
        def request(self, *args: Any, **options: Any) -> requests.Response:
            raise KeyError("token")

    with fake_server() as lookupd:
        reader = client.reader(
            print, lookupd_http_addresses=lookupd.address, lookupd_session=Unready
        )
        with pytest.raises(ConnectionLost, match=r"could not be made everywhere: KeyError\('token"):
            reader.ensure_channel()
