"""The cluster as nsqadmin shows it, against servers that say what they are told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gnsqsync.admin.cluster import AllFailed, Cluster
from gnsqsync.admin.upstream import KEPT, Failed, Upstream
from tests.support.serving import FakeServer, Serving, fake_server


class Paths(ThreadingHTTPServer):
    """Answers by path, and 404 TOPIC_NOT_FOUND elsewhere."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    # Each connection ends with its answer, and no thread waits for the next request.
    protocol_version = "HTTP/1.0"
    server: Paths

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path.partition("?")[0])
        body = json.dumps(answer or {"message": "TOPIC_NOT_FOUND"}).encode()
        self.send_response(200 if answer is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def nsqd_answers(
    hostname: str, *, depth: int, backend: int = 0, clients: tuple[str, ...] = ()
) -> dict[str, Any]:
    channel = {
        "channel_name": "c",
        "depth": depth,
        "backend_depth": backend,
        "message_count": depth,
        "client_count": len(clients),
        "clients": [{"hostname": name, "connect_ts": 1} for name in clients],
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }
    topic = {
        "topic_name": "t",
        "channels": [channel],
        "depth": 0,
        "backend_depth": 0,
        "message_count": depth,
        "paused": hostname == "paused",
        "e2e_processing_latency": {
            "count": depth,
            "percentiles": [{"quantile": 0.99, "value": depth * 10}],
        },
    }
    return {"/stats": {"topics": [topic]}, "/info": {"hostname": hostname, "version": "1.3.0"}}


@pytest.fixture
def two_nsqds() -> Iterator[tuple[Paths, Paths]]:
    one = Paths(nsqd_answers("a", depth=5, clients=("myhost",)))
    two = Paths(nsqd_answers("paused", depth=7, backend=5, clients=("abc",)))
    for server in (one, two):
        server.answers["/info"] |= {
            "broadcast_address": "127.0.0.1",
            "http_port": server.server_port,
            "tcp_port": server.server_port,
        }
    with Serving(one), Serving(two):
        yield one, two


@pytest.fixture
def dead() -> Iterator[str]:
    with socket.socket() as held:
        # Bound, so that nobody gets the port, but nothing listens.
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def quiet(text: str) -> None:
    pass


NewCluster = Callable[..., Cluster]


@pytest.fixture
def cluster_of() -> Iterator[NewCluster]:
    """Makes clusters that are closed before their servers are."""
    with contextlib.ExitStack() as stack:

        def new(nsqds: list[str], lookupds: list[str] | None = None) -> Cluster:
            cluster = Cluster(lookupds or [], nsqds, quiet)
            stack.callback(cluster.close)
            return cluster

        yield new


def test_a_topic_is_the_sum_over_its_nsqds(
    two_nsqds: tuple[Paths, Paths], cluster_of: NewCluster
) -> None:
    one, two = two_nsqds
    topic, errors = cluster_of([one.address, two.address]).topic("t")
    assert errors == [[], []]
    assert (topic["node"], topic["hostname"], topic["message_count"]) == ("*", "", 12)
    assert topic["paused"] is True
    assert [node["nodes"] for node in topic["nodes"]] == [None, None]
    (channel,) = topic["channels"]
    # The first nsqd's own channel is the total: only the other one is under it.
    assert (channel["node"], channel["hostname"], channel["depth"]) == ("*", "a", 12)
    assert (channel["memory_depth"], channel["backend_depth"]) == (7, 5)
    assert [node["node"] for node in channel["nodes"]] == [two.address]
    assert topic["e2e_processing_latency"] == {
        "count": 12,
        "percentiles": [
            {
                "average": pytest.approx((5 * 50 + 7 * 70) / 12),
                "count": 12,
                "max": 70,
                "min": 70,
                "quantile": 0.99,
            }
        ],
        "topic": "t",
        "channel": "",
        "host": "*",
    }


def test_a_channel_lists_all_nsqds_and_its_clients_by_host(
    two_nsqds: tuple[Paths, Paths], cluster_of: NewCluster
) -> None:
    one, two = two_nsqds
    channel, _ = cluster_of([one.address, two.address]).channel("t", "c")
    assert channel is not None
    assert (channel["node"], channel["hostname"], channel["depth"]) == ("*", "", 12)
    assert len(channel["nodes"]) == 2
    assert [client["hostname"] for client in channel["clients"]] == ["abc", "myhost"]
    assert len(channel["clients"][0]) == 24
    assert channel["clients"][0]["connected"] % 10**9 == 0
    assert cluster_of([one.address]).channel("t", "none")[0] is None


def test_counters_and_nodes_by_address(
    two_nsqds: tuple[Paths, Paths], cluster_of: NewCluster
) -> None:
    one, two = two_nsqds
    cluster = cluster_of([one.address, two.address])
    counters, _ = cluster.counters()
    assert {key: entry["message_count"] for key, entry in counters.items()} == {
        f"t:c:{one.address}": 5,
        f"t:c:{two.address}": 7,
    }
    topics, _ = cluster.node(two.address)
    assert topics is not None
    assert [topic["topic_name"] for topic in topics] == ["t"]
    assert cluster.node("x:1") == (None, [])


def test_an_nsqd_that_is_away_is_a_warning(
    two_nsqds: tuple[Paths, Paths], dead: str, cluster_of: NewCluster
) -> None:
    topics, errors = cluster_of([two_nsqds[0].address, dead]).topics()
    assert topics == ["t"]
    assert errors == [
        f'Get "http://{dead}/stats?format=json": dial tcp {dead}: connect: connection refused'
    ]


def test_all_away_or_none_at_all_is_an_error(dead: str, cluster_of: NewCluster) -> None:
    with pytest.raises(AllFailed, match=r"^failed to query any nsqd: Get "):
        cluster_of([dead]).topics()
    with pytest.raises(AllFailed, match=r"^failed to query any nsqlookupd: Get "):
        cluster_of([], [dead]).nodes()
    with pytest.raises(AllFailed, match=r"^failed to query any nsqd: $"):
        cluster_of([]).nodes()


def test_a_404_of_nsqlookupd_is_shown_in_its_words(cluster_of: NewCluster) -> None:
    server = Paths({"/topics": {"topics": []}})
    with Serving(server):
        cluster = cluster_of([], [server.address])
        assert cluster.topics() == (None, [])
        with pytest.raises(AllFailed) as caught:
            cluster.topic("none")
    assert str(caught.value) == (
        "failed to query any nsqlookupd: got response 404 Not Found"
        r' "{\"message\": \"TOPIC_NOT_FOUND\"}"'
    )


def test_nodes_of_two_nsqlookupds_are_one_list(cluster_of: NewCluster) -> None:
    def node(host: str, version: str, **more: Any) -> dict[str, Any]:
        return {
            "remote_address": "10.0.0.1:5",
            "hostname": host,
            "broadcast_address": host,
            "tcp_port": 4150,
            "http_port": 4151,
            "version": version,
            **more,
        }

    new = node("z", "1.3.0", topics=["t", "a"], tombstones=[True, False])
    one = Paths({"/nodes": {"producers": [new, node("b", "1.3.0-rc1")]}})
    two = Paths({"/nodes": {"producers": [new, node("c", "x.y")]}})
    with Serving(one), Serving(two):
        nodes, errors = cluster_of([], [one.address, two.address]).nodes()
    assert errors == []
    assert [(n["hostname"], n["out_of_date"]) for n in nodes] == [
        ("b", True),
        ("c", True),
        ("z", False),
    ]
    assert nodes[2]["remote_addresses"] == [
        f"{one.address}/10.0.0.1:5",
        f"{two.address}/10.0.0.1:5",
    ]
    assert nodes[2]["topics"] == [
        {"topic": "a", "tombstoned": False},
        {"topic": "t", "tombstoned": True},
    ]


def test_topics_without_an_nsqd_are_inactive(cluster_of: NewCluster) -> None:
    answers = {"/lookup": {"producers": []}, "/channels": {"channels": ["c"]}}
    server = Paths(answers)
    with Serving(server):
        assert cluster_of([], [server.address]).inactive(["t"])[0] == {"t": ["c"]}
        assert cluster_of([server.address]).inactive(["t"]) == ({}, [])
        # A failure is not an answer: an nsqd may have the topic.
        server.answers["/lookup"] = {"producers": 5}
        found, errors = cluster_of([], [server.address]).inactive(["t"])
        assert (found, len(errors)) == ({}, 1)


@pytest.mark.parametrize(
    "answer", [[], "x", {"topics": 5}, {"topics": [5]}, {"topics": [{"topic_name": 5}]}]
)
def test_an_answer_of_another_shape_is_a_failure_of_that_server(
    answer: Any, cluster_of: NewCluster
) -> None:
    with fake_server() as server:
        server.answer(answer)
        with pytest.raises(AllFailed, match="failed to query any nsqd: "):
            cluster_of([server.address]).topics()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        server.answer({"topics": []})
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def upstream(server: FakeServer, clock: Clock) -> Iterator[Upstream]:
    with Upstream(server.address, quiet, clock=clock) as upstream:
        yield upstream


def test_an_answer_is_kept_for_a_second(
    server: FakeServer, upstream: Upstream, clock: Clock
) -> None:
    upstream.get("/stats", format="json")
    clock.now += KEPT - 0.01
    upstream.get("/stats", format="json")
    assert len(server.requests) == 1
    clock.now += 0.02
    upstream.get("/stats", format="json")
    assert len(server.requests) == 2


def test_a_failure_is_kept_for_a_second(server: FakeServer, upstream: Upstream) -> None:
    server.answer({}, 500)
    for _ in range(2):
        with pytest.raises(Failed, match=r"^got response 500 Internal Server Error "):
            upstream.get("/stats")
    assert len(server.requests) == 1


def test_nothing_is_kept_across_a_change(server: FakeServer, upstream: Upstream) -> None:
    upstream.get("/stats")
    upstream.post("/topic/pause", {"topic": "t"})
    upstream.get("/stats")
    assert [request["method"] for request in server.requests] == ["GET", "POST", "GET"]


def test_however_many_watch_an_nsqd_is_asked_once(server: FakeServer, upstream: Upstream) -> None:
    together = threading.Barrier(20)

    def watch(_: int) -> dict[str, Any]:
        together.wait()
        return upstream.get("/stats")

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(watch, range(20))) == [{"topics": []}] * 20
    assert len(server.requests) == 1


def test_a_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Upstream(address, quiet, timeout=0.2) as upstream:
            with pytest.raises(
                Failed, match=r"\(Client.Timeout exceeded while awaiting headers\)$"
            ):
                upstream.get("/stats")


def test_nobody_waits_twice_for_a_server_that_is_silent(clock: Clock) -> None:
    """A page that waits behind another question gets the failure of that one."""
    asked: list[str] = []

    def ask(url: str) -> None:
        asked.append(url)
        # The request takes five seconds of this clock.
        clock.now += 5.0

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Upstream(address, ask, timeout=0.2, clock=clock) as upstream:
            for path in ("/stats", "/info", "/info"):
                with pytest.raises(Failed, match=f"{path}.*Client.Timeout exceeded"):
                    upstream.get(path)
                clock.now += 2.0
            assert len(asked) == 1
            # After as long as it was silent it is asked again.
            with pytest.raises(Failed, match="/info"):
                upstream.get("/info")
            assert len(asked) == 2
            upstream.forget()
            with pytest.raises(Failed, match="/info"):
                upstream.get("/info")
            assert len(asked) == 3


def test_an_answer_that_refuses_is_of_its_question_only(
    server: FakeServer, upstream: Upstream
) -> None:
    server.answer({}, 500)
    for path in ("/stats", "/info"):
        with pytest.raises(Failed, match="got response 500"):
            upstream.get(path)
    assert len(server.requests) == 2
