"""A Reader's discovery beside nsqlookupds that are dead, slow, wrong, old or behind a proxy."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsqsync import Observer, Reader
from gnsqsync.discovery.questions import MOST_NSQDS
from gnsqsync.errors import ConfigError
from tests.component.conftest import Client, address
from tests.support import ground
from tests.support.scripted import ScriptedNsqd
from tests.support.serving import FakeServer, fake_server
from tests.support.worlds import World

OFTEN = 0.05
UNKNOWN = {"message": "TOPIC_NOT_FOUND"}
CROWD = {
    "channels": [],
    "producers": [
        {"broadcast_address": "127.0.0.1", "tcp_port": port, "http_port": 1}
        for port in range(1, MOST_NSQDS + 2)
    ],
}


def producer(nsqd: ScriptedNsqd, **changes: Any) -> dict[str, Any]:
    host, port = nsqd.address
    return {"broadcast_address": host, "tcp_port": port, "http_port": 1, **changes}


def listing(*nsqds: ScriptedNsqd) -> dict[str, Any]:
    return {"channels": ["ch"], "producers": [producer(nsqd) for nsqd in nsqds]}


@pytest.fixture
def make_lookupd() -> Iterator[Callable[[], FakeServer]]:
    """Makes scripted nsqlookupds; each answers as told by ``answer()``."""
    with contextlib.ExitStack() as made:

        def make() -> FakeServer:
            server = made.enter_context(fake_server())
            server.answer({"channels": [], "producers": []})
            return server

        yield make


@pytest.fixture
def lookupd(make_lookupd: Callable[[], FakeServer]) -> FakeServer:
    return make_lookupd()


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with ScriptedNsqd() as nsqd:
        yield nsqd


class Discovering:
    """Starts Readers that poll all the time, and waits for what they do."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __call__(self, *lookupds: FakeServer | str, **options: Any) -> Reader:
        urls = [at if isinstance(at, str) else at.address for at in lookupds]
        return self.client.consume(
            print,
            lookupd_http_addresses=urls,
            nsqd_tcp_addresses=options.pop("nsqd_tcp_addresses", ()),
            lookupd_poll_interval=options.pop("lookupd_poll_interval", OFTEN),
            # Else there is a warning at the start, and these tests count what is told.
            on_giving_up="discard",
            **options,
        )

    def connected(self, lookupd: FakeServer, nsqd: ScriptedNsqd) -> Reader:
        """One that is subscribed, and asks no more by itself."""
        lookupd.answer(listing(nsqd))
        reader = self(lookupd, lookupd_poll_interval=3600)
        self.client.world.eventually(lambda: nsqd.received("RDY"))
        return reader

    def rounds(self, lookupd: FakeServer, more: int = 4) -> None:
        """Wait until it has been asked so many times more."""
        asked = len(lookupd.requests)
        self.client.world.eventually(lambda: len(lookupd.requests) >= asked + more)


@pytest.fixture
def discover(client: Client) -> Discovering:
    return Discovering(client)


def texts(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("gnsqsync") and record.levelno == level
    ]


# What it answers


def test_an_unknown_topic_is_told_once(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "gnsqsync.lookupd")
    lookupd.answer(UNKNOWN, 404)
    discover(lookupd)
    discover.rounds(lookupd)
    told = "does not know topic t yet"
    assert sum(told in text for text in texts(caplog, logging.INFO)) == 1
    assert sum(told in text for text in texts(caplog, logging.DEBUG)) >= 2
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: nsqd.received("SUB"))
    assert not texts(caplog, logging.WARNING)


@pytest.mark.parametrize("status", [404, 200])
def test_old_servers_wrap_their_answers(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    refusal = {"status_code": 404, "status_txt": "TOPIC_NOT_FOUND", "data": None}
    lookupd.answer(refusal, status)
    discover(lookupd)
    discover.rounds(lookupd, 2)
    assert not texts(caplog, logging.WARNING)
    lookupd.answer({"status_code": 200, "status_txt": "OK", "data": listing(nsqd)})
    world.eventually(lambda: nsqd.received("SUB"))


@pytest.mark.parametrize(
    "answer",
    [{"producers": None}, {"producers": []}, {"channels": None, "producers": None}, {}],
)
def test_no_producers_are_no_error(
    discover: Discovering,
    lookupd: FakeServer,
    caplog: pytest.LogCaptureFixture,
    answer: dict[str, Any],
) -> None:
    lookupd.answer(answer)
    discover(lookupd)
    discover.rounds(lookupd)
    assert not texts(caplog, logging.WARNING)


def test_broken_entries_are_left_out_one_by_one(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = [
        None,
        "10.0.0.1:4150",
        {},
        producer(nsqd, tcp_port="4150"),
        producer(nsqd, tcp_port=70000),
        producer(nsqd, broadcast_address=None),
        producer(nsqd, broadcast_address=["127.0.0.1"]),
    ]
    lookupd.answer({"channels": [], "producers": [*broken, producer(nsqd)]})
    reader = discover(lookupd)
    world.eventually(lambda: nsqd.received("SUB"))
    discover.rounds(lookupd)
    # Each is told once and not in each round; {} and no address are the same text.
    assert len(texts(caplog, logging.WARNING)) == len(broken) - 1
    assert len(reader.stats().connections) == 1


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"{", 200, "not JSON"),
        (b"", 200, "not JSON"),
        (b"\xff\xfe\x00", 200, "not JSON"),
        (b"<html><body>It works!</body></html>", 200, "not JSON"),
        (b"<html>no such page</html>", 404, "HTTP 404"),
        ({"message": "INTERNAL_ERROR"}, 500, "INTERNAL_ERROR"),
        (b"<html>502 Bad Gateway</html>", 502, "HTTP 502"),
        ([], 200, "JSON object"),
        ({"producers": {"a": 1}}, 200, "a list was expected"),
        (b"[" * 100000, 200, "nested"),
        (CROWD, 200, f"at most {MOST_NSQDS} are believed"),
    ],
    ids=range(11),
)
def test_nonsense_is_told_once_until_it_works_again(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
    status: int,
    words: str,
) -> None:
    caplog.set_level(logging.INFO, "gnsqsync.lookupd")
    told: list[tuple[str, Exception | None]] = []

    class Noting(Observer):
        def lookup_failed(self, url: str, reason: Exception) -> None:
            told.append((url, reason))

        def lookup_recovered(self, url: str) -> None:
            told.append((url, None))

    lookupd.answer(answer, status)
    discover(lookupd, observer=Noting())
    discover.rounds(lookupd, 5)
    (warning,) = texts(caplog, logging.WARNING)
    assert words in warning and lookupd.address in warning
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: nsqd.received("SUB"))
    world.eventually(lambda: len(texts(caplog, logging.WARNING)) == 2)
    assert "works again" in texts(caplog, logging.WARNING)[1]
    (failed_at, reason), (url, recovered) = told
    assert failed_at == url == f"http://{lookupd.address}"
    assert words in str(reason) and recovered is None


def test_an_nsqlookupd_that_is_dead_or_hangs_delays_nothing(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lookupd.answer(listing(nsqd))
    with ground.unused() as nobody, ground.silent() as hanging:
        dead, silent = "{}:{}".format(*nobody), "{}:{}".format(*hanging)
        discover(dead, silent, lookupd)
        world.eventually(lambda: nsqd.received("SUB"), 1.9)
        discover.rounds(lookupd)
        # Its time-out is over after two seconds.
        world.eventually(lambda: len(texts(caplog, logging.WARNING)) == 2)
    refused, late = sorted(texts(caplog, logging.WARNING), key=lambda text: "no answer" in text)
    assert dead in refused and "refused" in refused
    assert silent in late and "no answer within 2 s" in late


def test_all_are_asked_in_each_round_and_merged(
    discover: Discovering, world: World, make_lookupd: Callable[[], FakeServer]
) -> None:
    lookupds = [make_lookupd() for _ in range(3)]
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        lookupds[0].answer(listing(one))
        lookupds[2].answer(listing(two, one))
        reader = discover(*lookupds)
        world.eventually(lambda: all(len(each.requests) >= 3 for each in lookupds))
        world.eventually(lambda: len(reader.stats().connections) == 2)
        assert len(one.connections) == len(two.connections) == 1


class TimeOver(BaseException):
    """As gevent.Timeout: no Exception, and hooks let it out where somebody forgot that."""


class Impatient(Observer):
    """Its hooks end like that, each time."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def lookup_failed(self, url: str, reason: Exception) -> None:
        self.calls.append("failed")
        raise TimeOver

    def lookup_recovered(self, url: str) -> None:
        self.calls.append("recovered")
        raise TimeOver


def test_a_hook_whose_thread_is_ended_does_not_end_the_asking(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    observer = Impatient()
    lookupd.answer(b"<html>", 500)
    reader = discover(lookupd, observer=observer)
    discover.rounds(lookupd)
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: reader.stats().connections)
    discover.rounds(lookupd)
    assert observer.calls == ["failed", "recovered"]


# What becomes of nsqds


def test_an_empty_answer_closes_no_connection(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    reader = discover(lookupd)
    world.eventually(lambda: nsqd.received("RDY"))
    for answer, status in (({"producers": []}, 200), (UNKNOWN, 404), (b"<html>", 500)):
        lookupd.answer(answer, status)
        discover.rounds(lookupd, 2)
    assert len(reader.stats().connections) == 1
    assert not nsqd.received("CLS")


def test_an_nsqd_that_vanished_is_dialled_a_few_times_only(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd.refuse_connections()
    lookupd.answer(listing(nsqd))
    lost = []

    class Noting(Observer):
        def lost(self, nsqd_address: str, reason: Exception) -> None:
            lost.append(reason)

    reader = discover(lookupd, observer=Noting())
    world.eventually(lambda: texts(caplog, logging.WARNING))
    lookupd.answer({"producers": []})
    world.eventually(lambda: any("not tried again" in t for t in texts(caplog, logging.WARNING)))
    dials = [text for text in texts(caplog, logging.WARNING) if "tried again" in text]
    # One at the beginning, one at the end; each is told to an Observer.
    assert len(dials) == 2
    assert 3 <= len(lost) <= 4
    assert not reader._run.subscription._nodes._nodes  # type: ignore[union-attr]
    # It is there again as soon as somebody lists it.
    nsqd.accept_connections()
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: reader.stats().connections)


def test_an_nsqd_that_ended_is_not_dialled_before_it_is_listed(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    """Its topic may have been deleted, and SUB would create it. Polls alone would not tell soon."""
    reader = discover.connected(lookupd, nsqd)
    lookupd.answer({"producers": []})
    asked = len(lookupd.requests)
    nsqd.drop_connections()
    world.eventually(lambda: len(lookupd.requests) >= asked + 2)
    assert len(nsqd.connections) == 1
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: reader.stats().connections)
    assert len(nsqd.connections) == 2


def test_an_nsqd_that_ended_is_dialled_when_no_nsqlookupd_answers(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    reader = discover.connected(lookupd, nsqd)
    lookupd.answer({"message": "INTERNAL_ERROR"}, 500)
    nsqd.drop_connections()
    world.eventually(lambda: len(nsqd.connections) == 2)
    world.eventually(lambda: reader.stats().connections)


def test_a_listed_nsqd_is_dialled_until_it_is_there(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    nsqd.refuse_connections()
    reader = discover(lookupd)
    discover.rounds(lookupd)
    assert not reader.stats().connections
    nsqd.accept_connections()
    world.eventually(lambda: reader.stats().connections)


def test_an_address_that_cannot_be_reached_names_the_flag(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lookupd.answer(listing(nsqd))
    nsqd.refuse_connections()
    with ground.unused() as nobody:
        direct = "{}:{}".format(*nobody)
    discover(lookupd, nsqd_tcp_addresses=direct)
    world.eventually(lambda: len(texts(caplog, logging.WARNING)) >= 2)
    for warning in texts(caplog, logging.WARNING):
        # The user's own address has nothing to do with it.
        assert ("--broadcast-address" in warning) == (direct not in warning)
        assert "it is tried again in" in warning


@pytest.mark.parametrize("form", ["dict", "callable"])
def test_an_address_map_leads_to_where_it_listens(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd, form: str
) -> None:
    where = address(nsqd)
    table = {"nsqd-7.cluster.internal:4150": where}
    lookupd.answer(
        {"producers": [producer(nsqd, broadcast_address="nsqd-7.cluster.internal", tcp_port=4150)]}
    )
    reader = discover(lookupd, address_map=table if form == "dict" else table.__getitem__)
    world.eventually(lambda: nsqd.received("RDY"))
    (connection,) = reader.stats().connections
    assert connection.address == "nsqd-7.cluster.internal:4150"


# How it is asked


def test_path_query_and_user_info_of_a_url_are_kept(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    lookupd.answer(listing(nsqd))
    reader = discover(f"http://me:geheim@{lookupd.address}/nsq/a?zone=1")
    world.eventually(lambda: nsqd.received("SUB"))
    asked = lookupd.requests[0]
    assert asked["path"] == "/nsq/a/lookup"
    assert asked["params"] == {"zone": "1", "topic": "t"}
    assert asked["headers"]["Authorization"] == "Basic bWU6Z2VoZWlt"
    assert "vnd.nsq; version=1.0" in asked["headers"]["Accept"]
    lookupd.answer(b"<html>", 500)
    world.eventually(lambda: texts(caplog, logging.WARNING))
    assert "geheim" not in caplog.text + repr(reader) + repr(reader._setup)
    assert not [thread for thread in threading.enumerate() if "geheim" in thread.name]


def test_a_token_is_sent_and_shown_nowhere(
    discover: Discovering,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    lookupd.answer(listing(nsqd))
    reader = discover(lookupd, lookupd_authorization="geheim")
    world.eventually(lambda: nsqd.received("SUB"))
    assert lookupd.requests[0]["headers"]["Authorization"] == "Bearer geheim"
    lookupd.answer({"message": "FORBIDDEN"}, 403)
    world.eventually(lambda: texts(caplog, logging.WARNING))
    assert "geheim" not in caplog.text + repr(reader) + repr(reader._setup)


def test_a_redirect_is_followed_without_the_token(
    discover: Discovering,
    world: World,
    make_lookupd: Callable[[], FakeServer],
    nsqd: ScriptedNsqd,
) -> None:
    first, second = make_lookupd(), make_lookupd()
    second.answer(listing(nsqd))
    first.answer(b"", 302)
    first.headers["Location"] = f"http://localhost:{second.server_port}/lookup?topic=t"
    discover(first, lookupd_authorization="geheim")
    world.eventually(lambda: nsqd.received("SUB"))
    assert "Authorization" in first.requests[0]["headers"]
    assert "Authorization" not in second.requests[0]["headers"]


@pytest.mark.parametrize("token", ["", "a b\n", "ü", 7])
def test_a_token_must_be_one(token: Any) -> None:
    with pytest.raises(ConfigError, match="authorization must be a token"):
        Reader("t", "c", lookupd_http_addresses="h", lookupd_authorization=token)


def test_a_token_and_user_info_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="both given") as caught:
        Reader("t", "c", lookupd_http_addresses="http://a:b@h", lookupd_authorization="geheim")
    assert "geheim" not in str(caught.value)
    reader = Reader("t", "c", lookupd_http_addresses="h", lookupd_authorization="geheim")
    with pytest.raises(ConfigError, match="both given"):
        reader.add_lookupd("http://a:b@h")
