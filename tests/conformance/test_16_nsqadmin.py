"""nsqadmin's JSON API, on the real nsqadmin over real servers and on ours over embedded ones.

Where ours differs on purpose, a test says what each of them does.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import requests

from tests.support import realnsq
from tests.support.needs import missing
from tests.support.servers import Server, Site, unique

MISSING = 'got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
NO_CHANNEL = 'got response 404 Not Found "{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"'


@pytest.fixture(autouse=True)
def _there_is_one(server_kind: str) -> None:
    if server_kind == "real":
        try:
            realnsq.program("nsqadmin")
        except realnsq.Unavailable as error:
            missing(error)


def place(server: Server) -> str:
    return f"127.0.0.1:{server.http_address[1]}"


def tcp_place(server: Server) -> str:
    return f"127.0.0.1:{server.tcp_address[1]}"


def ask(
    server: Server,
    path: str,
    method: str = "GET",
    body: str | bytes | None = None,
    **headers: str,
) -> requests.Response:
    """As a script does it; no redirect is followed."""
    request = requests.Request(
        method,
        f"http://{place(server)}",
        data=body.encode() if isinstance(body, str) else body,
        headers={
            "Accept-Encoding": "identity",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        },
    ).prepare()
    # As it stands: requests would put some of it right.
    request.url = f"http://{place(server)}{path}"
    with requests.Session() as session:
        session.trust_env = False
        return session.send(request, allow_redirects=False, timeout=60)


def said(server: Server, path: str, status: int = 200) -> Any:
    answer = ask(server, path)
    assert answer.status_code == status, answer.text
    return answer.json()


def do(server: Server, path: str, method: str = "POST", status: int = 200, **body: object) -> str:
    """``message`` of the answer."""
    answer = ask(server, path, method, json.dumps(body))
    assert answer.status_code == status, answer.text
    found: str = answer.json()["message"]
    return found


class Cluster(NamedTuple):
    """``a`` asks the nsqlookupds, ``d`` the nsqds."""

    l1: Server
    l2: Server
    n1: Server
    n2: Server
    a: Server
    d: Server

    def topic(self, site: Site) -> str:
        """A new one: 5 messages on n1 and 7 on n2, channels c on both and only on n1."""
        name = unique("t")
        for nsqd in (self.n1, self.n2):
            self.tell(nsqd, f"/topic/create?topic={name}")
            self.tell(nsqd, f"/channel/create?topic={name}&channel=c")
        self.tell(self.n1, f"/channel/create?topic={name}&channel=only")
        for nsqd, count in ((self.n1, 5), (self.n2, 7)):
            for _ in range(count):
                self.tell(nsqd, f"/pub?topic={name}", b"x")
        site.eventually(lambda: len(self.listed(name)) == 2)
        return name

    def listed(self, topic: str) -> list[Any]:
        found = []
        for lookupd in (self.l1, self.l2):
            answer = ask(lookupd, f"/lookup?topic={topic}")
            found.append(answer.json().get("producers", []) if answer.status_code == 200 else [])
        return min(found, key=len)

    @staticmethod
    def tell(server: Server, path: str, body: bytes = b"") -> None:
        assert ask(server, path, "POST", body).status_code == 200

    @staticmethod
    def stats(nsqd: Server, topic: str) -> Any:
        topics = said(nsqd, f"/stats?format=json&topic={topic}")["topics"]
        return topics[0] if topics else None


@pytest.fixture
def cluster(site: Site) -> Cluster:
    l1, l2 = (site.nsqlookupd(share=f"admin {number}") for number in (1, 2))
    both = [f"-lookupd-tcp-address={tcp_place(each)}" for each in (l1, l2)]
    n1 = site.nsqd(*both, "-e2e-processing-latency-percentile=1.0,0.99", share="admin 1")
    n2 = site.nsqd(*both, "-mem-queue-size=2", share="admin 2")
    a = site.nsqadmin(f"-lookupd-http-address={place(l1)}", f"-lookupd-http-address={place(l2)}")
    d = site.nsqadmin(f"-nsqd-http-address={place(n1)}", f"-nsqd-http-address={place(n2)}")
    site.eventually(lambda: len(ask(l1, "/nodes").json()["producers"]) == 2)
    site.eventually(lambda: len(ask(l2, "/nodes").json()["producers"]) == 2)
    return Cluster(l1, l2, n1, n2, a, d)


@pytest.fixture
def dead() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def refused(url: str, method: str = "Get") -> str:
    address = url.split("/")[2]
    return f'{method} "{url}": dial tcp {address}: connect: connection refused'


# -- reading ---------------------------------------------------------------------------------------


def test_nothing_published(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={tcp_place(lookupd)}")
    site.eventually(lambda: ask(lookupd, "/nodes").json()["producers"])
    for flag in (f"-lookupd-http-address={place(lookupd)}", f"-nsqd-http-address={place(nsqd)}"):
        admin = site.own_nsqadmin(flag)
        assert ask(admin, "/api/topics").text == '{"topics":null,"message":""}'
        assert ask(admin, "/api/topics?inactive=true").text == '{"topics":{},"message":""}'
        assert ask(admin, "/api/counter").text == '{"stats":{},"message":""}'
        assert ask(admin, f"/api/nodes/{place(nsqd)}").text == (
            f'{{"node":"{place(nsqd)}","topics":null,"total_messages":0,"total_clients":0,"message":""}}'
        )
        (node,) = said(admin, "/api/nodes")["nodes"]
        assert node["topics"] is None
        if flag.startswith("-l"):
            assert node["remote_addresses"] == [f"{place(lookupd)}/{node['remote_address']}"]
        else:
            assert (node["remote_addresses"], node["remote_address"]) == (None, "")


def test_an_unknown_topic(cluster: Cluster) -> None:
    for path in ("/api/topics/none", "/api/topics/none/c"):
        assert said(cluster.a, path, 502)["message"] == (
            f"UPSTREAM_ERROR: failed to query any nsqlookupd: {MISSING}\n{MISSING}"
        )
        assert said(cluster.d, path, 502)["message"] == (
            "UPSTREAM_ERROR: failed to query any nsqd: "
        )


def test_an_unknown_node(cluster: Cluster) -> None:
    assert said(cluster.a, "/api/nodes/x:1", 404) == {"message": "NODE_NOT_FOUND"}


def test_ping(cluster: Cluster) -> None:
    answer = ask(cluster.a, "/ping")
    assert (answer.text, answer.headers["Content-Type"]) == ("OK", "text/plain; charset=utf-8")
    assert "X-NSQ-Content-Type" not in answer.headers
    for path in ("/ping/", "//ping"):
        answer = ask(cluster.a, path)
        assert (answer.status_code, answer.headers["Location"]) == (301, "/ping")


def test_other_methods(cluster: Cluster) -> None:
    for method in ("HEAD", "POST"):
        answer = ask(cluster.a, "/ping", method)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, OPTIONS")
    answer = ask(cluster.a, "/api/topics", "OPTIONS")
    assert (answer.status_code, answer.text) == (200, "")
    assert answer.headers["Allow"] == "GET, OPTIONS, POST"
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("path", ["/nope", "/api", "/api/", "/config/", "/topics/a/b/c", "/render"])
def test_unknown_paths(cluster: Cluster, path: str) -> None:
    answer = ask(cluster.a, path)
    assert (answer.status_code, answer.text) == (404, '{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/counter", "/lookup"]
)
def test_pages_are_html(cluster: Cluster, path: str) -> None:
    answer = ask(cluster.a, path)
    # Ours has the topic in its page, or says that there is none.
    assert answer.status_code == 200 or (path.startswith("/topics/t") and cluster.a.kind != "real")
    assert answer.headers["Content-Type"].startswith("text/html")


def test_a_style_sheet(cluster: Cluster) -> None:
    found = [ask(cluster.a, f"/{folder}/base.css") for folder in ("static", "fonts")]
    assert [answer.status_code for answer in found] == [200, 200]
    assert {answer.headers["Content-Type"] for answer in found} == {"text/css; charset=utf-8"}
    assert found[0].content == found[1].content


def test_corrected_paths(cluster: Cluster) -> None:
    for path in ("/api/topics/", "/API/topics"):
        answer = ask(cluster.a, path)
        assert (answer.status_code, answer.headers["Location"]) == (301, "/api/topics")
    answer = ask(cluster.a, "/api/topics/t/")
    assert (answer.status_code, answer.headers["Location"]) == (301, "/api/topics/t")


def test_compression(cluster: Cluster) -> None:
    plain = ask(cluster.a, "/api/topics").content
    answer = ask(cluster.a, "/api/topics", Accept_Encoding="gzip")
    assert (answer.headers["Content-Encoding"], answer.headers["Vary"]) == (
        "gzip",
        "Accept-Encoding",
    )
    assert answer.content == plain
    with requests.get(
        f"http://{place(cluster.a)}/api/topics",
        headers={"Accept-Encoding": "deflate"},
        stream=True,
        timeout=60,
    ) as raw:
        assert zlib.decompress(raw.raw.read(decode_content=False), -15) == plain
    answer = ask(cluster.a, "/api/topics", Accept_Encoding="br, gzip;q=0.5")
    assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize(
    ("query", "message"),
    [("x=%zz", 'invalid URL escape "%zz"'), ("a;b", "invalid semicolon separator in query")],
)
def test_bad_queries(cluster: Cluster, query: str, message: str) -> None:
    # requests would put them right.
    connection = http.client.HTTPConnection(*cluster.a.http_address, timeout=60)
    connection.request("GET", f"/api/topics?{query}")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["message"]) == (400, message)
    connection.close()


def test_a_query_that_means_nothing(cluster: Cluster) -> None:
    assert isinstance(said(cluster.a, "/api/topics?inactive=1")["topics"], (list, type(None)))


@pytest.mark.parametrize("mode", ["a", "d"])
def test_topics_and_counters(site: Site, cluster: Cluster, mode: str) -> None:
    admin: Server = getattr(cluster, mode)
    topic = cluster.topic(site)
    n1, n2 = place(cluster.n1), place(cluster.n2)
    site.eventually(lambda: topic in (said(admin, "/api/topics")["topics"] or ()))
    assert topic not in said(admin, "/api/topics?inactive=true").get("topics", {})

    def counts() -> dict[str, int]:
        stats = said(admin, "/api/counter")["stats"]
        return {k: v["message_count"] for k, v in stats.items() if v["topic_name"] == topic}

    wanted = {f"{topic}:c:{n1}": 5, f"{topic}:c:{n2}": 7, f"{topic}:only:{n1}": 5}
    site.eventually(lambda: counts() == wanted, describe=counts)
    nodes = {f"127.0.0.1:{n['http_port']}": n for n in said(admin, "/api/nodes")["nodes"]}
    assert {"topic": topic, "tombstoned": False} in nodes[n2]["topics"]
    assert not nodes[n1]["out_of_date"]
    if mode == "a":
        assert nodes[n1]["topics"] == sorted(nodes[n1]["topics"], key=lambda one: one["topic"])


@pytest.mark.parametrize("mode", ["a", "d"])
def test_a_topic(site: Site, cluster: Cluster, mode: str) -> None:
    admin: Server = getattr(cluster, mode)
    topic = cluster.topic(site)
    found = said(admin, f"/api/topics/{topic}")
    assert " ".join(found) == (
        "node hostname topic_name depth memory_depth backend_depth message_count nodes "
        "channels paused e2e_processing_latency message"
    )
    assert (found["node"], found["hostname"], found["message_count"]) == ("*", "", 12)
    assert len(found["nodes"]) == 2
    for node in found["nodes"]:
        assert node["nodes"] is None
        assert all(channel["clients"] is None for channel in node["channels"])
    by_name = {channel["channel_name"]: channel for channel in found["channels"]}
    assert set(by_name) == {"c", "only"}
    c = by_name["c"]
    assert (c["depth"], c["memory_depth"], c["backend_depth"]) == (12, 7, 5)
    # As the Go program has it: the channel of the first node is the total.
    assert (c["node"], len(c["nodes"])) == ("*", 1)
    assert (by_name["only"]["node"], by_name["only"]["nodes"]) == (place(cluster.n1), None)


@pytest.mark.parametrize("mode", ["a", "d"])
def test_a_channel(site: Site, cluster: Cluster, mode: str) -> None:
    admin: Server = getattr(cluster, mode)
    topic = cluster.topic(site)
    found = said(admin, f"/api/topics/{topic}/c")
    assert (found["depth"], len(found["nodes"]), found["client_count"]) == (12, 2, 0)
    assert (found["hostname"], found["clients"]) == ("", None)
    assert all(node["clients"] == [] for node in found["nodes"])
    assert ask(admin, f"/api/topics/{topic}/nochan").text == '{"message":""}'


def test_consumers_of_a_channel(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    for nsqd, host in ((cluster.n1, "myhost"), (cluster.n2, "abc")):
        client = site.client(nsqd)
        client.identify(client_id="cid", hostname=host, feature_negotiation=True)
        client.subscribe(topic, "c")
        client.send(b"RDY 2\n")
        if host == "myhost":
            first, second = client.message(), client.message()
            client.send(b"FIN " + first.id + b"\n")
            client.send(b"REQ " + second.id + b" 0\n")

    def clients() -> list[Any]:
        return said(cluster.a, f"/api/topics/{topic}/c")["clients"] or []

    site.eventually(lambda: len(clients()) == 2 and clients()[1]["finish_count"] == 1)
    first_client, second_client = clients()
    assert (first_client["hostname"], second_client["hostname"]) == ("abc", "myhost")
    assert second_client["client_id"] == "cid"
    assert second_client["requeue_count"] == 1
    assert " ".join(second_client) == (
        "node remote_address version client_id hostname user_agent connect_ts connected "
        "in_flight_count ready_count finish_count requeue_count message_count sample_rate "
        "deflate snappy authed auth_identity auth_identity_url tls tls_cipher_suite "
        "tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
    )
    assert second_client["connected"] % 10**9 == 0


def test_a_node(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    site.eventually(
        lambda: (
            topic
            in [
                t["topic_name"]
                for t in said(cluster.a, f"/api/nodes/{place(cluster.n2)}")["topics"]
            ]
        )
    )
    found = said(cluster.a, f"/api/nodes/{place(cluster.n2)}")
    assert found["total_messages"] == sum(one["message_count"] for one in found["topics"])
    channels = [channel for one in found["topics"] for channel in one["channels"] or ()]
    assert all(isinstance(channel["clients"], list) for channel in channels)


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "EOF"),
        ("x", "invalid character 'x' looking for beginning of value"),
        ("{}", "INVALID_TOPIC"),
        ("null", "INVALID_TOPIC"),
        ('{"topic":"%s"}' % ("x" * 65), "INVALID_TOPIC"),
        ('{"topic":"t","channel":"a b"}', "INVALID_CHANNEL"),
        ('{"topic":5}', "json: cannot unmarshal number into Go struct field .topic of type string"),
    ],
)
def test_bad_creations(cluster: Cluster, body: str, message: str) -> None:
    answer = ask(cluster.a, "/api/topics", "POST", body)
    assert (answer.status_code, answer.json()["message"]) == (400, message)


def test_creations(site: Site, cluster: Cluster) -> None:
    one, two, three = (unique("made") for _ in range(3))
    for _ in range(2):
        answer = ask(cluster.a, "/api/topics", "POST", json.dumps({"topic": one}))
        assert (answer.status_code, answer.text) == (200, '{"message":""}')
    body = f'{{"Topic":"{two}","CHANNEL":"c"}}'
    assert ask(cluster.a, "/api/topics", "POST", body).status_code == 200
    assert (
        ask(cluster.a, "/api/topics", "POST", f'{{"topic":"{three}"}} trailing').status_code == 200
    )

    def made() -> dict[str, Any]:
        inactive = said(cluster.a, "/api/topics?inactive=true")["topics"]
        return {name: inactive.get(name, "-") for name in (one, two, three)}

    site.eventually(lambda: made() == {one: None, two: ["c"], three: None}, describe=made)
    assert said(cluster.a, f"/api/topics/{one}", 502)["message"] == (
        "UPSTREAM_ERROR: failed to query any nsqd: "
    )
    assert do(cluster.a, f"/api/topics/{one}", "DELETE") == ""
    site.eventually(lambda: made()[one] == "-")


def test_creations_without_nsqlookupd(cluster: Cluster) -> None:
    name = unique("dd")
    assert do(cluster.d, "/api/topics", topic=name) == ""
    assert cluster.stats(cluster.n1, name) is None
    assert do(cluster.d, "/api/topics", status=502, topic=name, channel="c") == (
        "UPSTREAM_ERROR: failed to query any nsqlookupd: "
    )


def test_a_channel_is_created_on_all_nsqds(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    assert do(cluster.a, "/api/topics", topic=topic, channel="newch") == ""
    for nsqd in (cluster.n1, cluster.n2):
        channels = cluster.stats(nsqd, topic)["channels"]
        assert "newch" in [channel["channel_name"] for channel in channels]
    assert do(cluster.a, f"/api/topics/{topic}/newch", "DELETE") == ""
    for nsqd in (cluster.n1, cluster.n2):
        channels = cluster.stats(nsqd, topic)["channels"]
        assert "newch" not in [channel["channel_name"] for channel in channels]


@pytest.mark.parametrize(
    ("body", "message"),
    [("", "EOF"), ("{}", "INVALID_ACTION"), ('{"action":"PAUSE"}', "INVALID_ACTION")],
)
def test_bad_actions(cluster: Cluster, body: str, message: str) -> None:
    answer = ask(cluster.a, "/api/topics/t", "POST", body)
    assert (answer.status_code, answer.json()["message"]) == (400, message)


@pytest.mark.parametrize("mode", ["a", "d"])
def test_pausing(site: Site, cluster: Cluster, mode: str) -> None:
    admin: Server = getattr(cluster, mode)
    topic = cluster.topic(site)
    for _ in range(2):
        assert do(admin, f"/api/topics/{topic}", action="pause") == ""
        assert all(cluster.stats(nsqd, topic)["paused"] for nsqd in (cluster.n1, cluster.n2))
    assert do(admin, f"/api/topics/{topic}", action="unpause") == ""
    cluster.tell(cluster.n1, f"/topic/pause?topic={topic}")
    site.eventually(lambda: said(admin, f"/api/topics/{topic}")["paused"])
    assert do(admin, f"/api/topics/{topic}/only", action="pause") == f"WARNING: {NO_CHANNEL}"
    only = [c for c in cluster.stats(cluster.n1, topic)["channels"] if c["channel_name"] == "only"]
    assert only[0]["paused"]


def test_a_channel_that_is_nowhere(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    path = f"/api/topics/{topic}/nochan"
    assert do(cluster.a, path, action="pause") == f"WARNING: {NO_CHANNEL}\n{NO_CHANNEL}"
    assert len(do(cluster.a, path, "DELETE").splitlines()) == 4
    assert len(do(cluster.d, path, "DELETE").splitlines()) == 2


def test_a_topic_that_is_nowhere(cluster: Cluster) -> None:
    for method, body in (("POST", {"action": "empty"}), ("DELETE", {})):
        do(cluster.a, "/api/topics/none", method, 502, **body)
        assert do(cluster.d, "/api/topics/none", method, **body) == ""


def test_emptying_and_deleting(site: Site, cluster: Cluster) -> None:
    topic = unique("solo")
    cluster.tell(cluster.n1, f"/pub?topic={topic}", b"x")
    site.eventually(lambda: len(cluster.listed(topic)) == 1)
    assert do(cluster.a, f"/api/topics/{topic}", action="empty") == ""
    assert cluster.stats(cluster.n1, topic)["depth"] == 0
    do(cluster.d, f"/api/topics/{topic}", "DELETE")
    assert cluster.stats(cluster.n1, topic) is None
    site.eventually(lambda: topic in said(cluster.a, "/api/topics?inactive=true")["topics"])
    do(cluster.a, f"/api/topics/{topic}", "DELETE")
    site.eventually(lambda: topic not in (said(cluster.a, "/api/topics")["topics"] or ()))


def test_tombstones(site: Site, cluster: Cluster) -> None:
    path = f"/api/nodes/{place(cluster.n2)}"
    for body, message in (
        ("", "INVALID_BODY"),
        ("{}", "INVALID_TOPIC"),
        ('{"topic":"a b"}', "INVALID_TOPIC"),
    ):
        answer = ask(cluster.a, path, "DELETE", body)
        assert (answer.status_code, answer.json()["message"]) == (400, message)
    topic = cluster.topic(site)
    assert do(cluster.a, path, "DELETE", topic=topic) == ""
    assert cluster.stats(cluster.n2, topic) is None
    site.eventually(lambda: len(said(cluster.a, f"/api/topics/{topic}")["nodes"]) == 1)
    assert do(cluster.a, path, "DELETE", topic=topic).startswith("WARNING: got response 404")
    cluster.tell(cluster.n2, f"/pub?topic={topic}", b"x")
    site.eventually(lambda: len(said(cluster.a, f"/api/topics/{topic}")["nodes"]) == 2)


def test_a_tombstone_for_a_node_that_is_not_listed(site: Site, cluster: Cluster, dead: str) -> None:
    """nsqadmin sends the request to whatever host the visitor names."""
    if site.kind != "real":
        assert do(cluster.a, f"/api/nodes/{dead}", "DELETE", 404, topic="t") == "NODE_NOT_FOUND"
        return
    assert do(cluster.a, f"/api/nodes/{dead}", "DELETE", 502, topic="t") == (
        f"UPSTREAM_ERROR: failed to query any nsqd: {refused(f'http://{dead}/info')}"
    )


# -- servers that fail -----------------------------------------------------------------------------


def test_a_tombstone_at_one_nsqlookupd_only(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    cluster.tell(cluster.l1, f"/topic/tombstone?topic={topic}&node={place(cluster.n2)}")

    def nodes() -> list[str]:
        return [node["node"] for node in said(cluster.a, f"/api/topics/{topic}")["nodes"]]

    assert sorted(nodes()) == sorted([place(cluster.n1), place(cluster.n2)])
    cluster.tell(cluster.l2, f"/topic/tombstone?topic={topic}&node={place(cluster.n2)}")
    # Ours keeps an answer for a second.
    site.eventually(lambda: nodes() == [place(cluster.n1)])
    (node,) = (
        node
        for node in said(cluster.a, "/api/nodes")["nodes"]
        if node["http_port"] == cluster.n2.http_address[1]
    )
    assert {"topic": topic, "tombstoned": True} in node["topics"]


def test_latencies_are_merged(site: Site, cluster: Cluster) -> None:
    nsqds = [site.own_nsqd("-e2e-processing-latency-percentile=0.99") for _ in range(2)]
    for nsqd, count in zip(nsqds, (1, 3), strict=True):
        cluster.tell(nsqd, "/topic/create?topic=late")
        cluster.tell(nsqd, "/channel/create?topic=late&channel=c")
        cluster.tell(nsqd, "/mpub?topic=late", b"\n".join([b"x"] * count))
        client = site.client(nsqd)
        client.subscribe("late", "c", rdy=10)
        client.fin(*client.messages(count))
        site.eventually(lambda n=nsqd, c=count: latency(n)["count"] == c)
    admin = site.own_nsqadmin(*(f"-nsqd-http-address={place(nsqd)}" for nsqd in nsqds))
    found = said(admin, "/api/topics/late/c")["e2e_processing_latency"]
    one, other = (latency(nsqd)["percentiles"][0]["value"] for nsqd in nsqds)
    assert found["count"] == 4
    (merged,) = found["percentiles"]
    assert list(merged) == ["average", "count", "max", "min", "quantile", "value"][: len(merged)]
    assert merged["average"] == pytest.approx((one + 3 * other) / 4)
    assert merged["max"] == max(one, other)


def latency(nsqd: Server) -> Any:
    (topic,) = said(nsqd, "/stats?format=json&topic=late")["topics"]
    return topic["channels"][0]["e2e_processing_latency"]


def test_a_dead_nsqlookupd(site: Site, cluster: Cluster, dead: str) -> None:
    topic = cluster.topic(site)
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(cluster.l1)}")
    body = json.dumps([place(cluster.l1), dead])
    answer = ask(admin, "/config/nsqlookupd_http_addresses", "PUT", body)
    assert answer.json() == [place(cluster.l1), dead]
    for path, call in (
        ("/api/topics", "topics"),
        (f"/api/topics/{topic}", f"lookup?topic={topic}"),
        (f"/api/topics/{topic}/c", f"lookup?topic={topic}"),
        ("/api/nodes", "nodes"),
        (f"/api/nodes/{place(cluster.n1)}", "nodes"),
        ("/api/counter", "nodes"),
    ):
        assert said(admin, path)["message"] == f"WARNING: {refused(f'http://{dead}/{call}')}"
    message = do(admin, "/api/topics", topic=topic, channel="more")
    assert [line.split('"')[1].split("?")[0] for line in message.splitlines()] == [
        f"http://{dead}/topic/create",
        f"http://{dead}/channel/create",
        f"http://{dead}/lookup",
    ]


def test_dead_nsqlookupds_only(site: Site, dead: str) -> None:
    admin = site.own_nsqadmin(f"-lookupd-http-address={dead}")
    for path in ("/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/nodes", "/api/counter"):
        message = said(admin, path, 502)["message"]
        assert message.startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: Get ")
    assert do(admin, "/api/topics", topic="t") == (
        f"WARNING: {refused(f'http://{dead}/topic/create?topic=t', 'Post')}"
    )
    do(admin, "/api/topics", status=502, topic="t", channel="c")


def test_no_nsqlookupds(site: Site, cluster: Cluster) -> None:
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(cluster.l1)}")
    path = "/config/nsqlookupd_http_addresses"
    for body in ("x", '"a"'):
        answer = ask(admin, path, "PUT", body)
        assert (answer.status_code, answer.json()["message"]) == (400, "INVALID_VALUE")
    assert ask(admin, path, "PUT", "[]").text == "[]"
    assert said(admin, "/api/topics", 502)["message"] == (
        "UPSTREAM_ERROR: failed to query any nsqd: "
    )


def test_a_dead_nsqd(site: Site, cluster: Cluster, dead: str) -> None:
    admin = site.own_nsqadmin(
        f"-nsqd-http-address={place(cluster.n1)}", f"-nsqd-http-address={dead}"
    )
    for path in ("/api/topics", "/api/nodes", "/api/counter"):
        assert said(admin, path)["message"].startswith("WARNING: Get ")
    said(admin, f"/api/nodes/{dead}", 404)
    admin = site.own_nsqadmin(f"-nsqd-http-address={dead}")
    for path in ("/api/topics", "/api/nodes", "/api/counter"):
        said(admin, path, 502)


@contextmanager
def serving(
    answer: bytes, status: int = 200, seconds: float = 0.0
) -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server that answers everything so; its address, and what it was asked."""
    asked: list[Any] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            asked.append((self.path, dict(self.headers), self.rfile.read(size)))
            over.wait(seconds)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_nsqd_that_never_answers(site: Site) -> None:
    with serving(b"", seconds=30) as (address, _):
        admin = site.own_nsqadmin(
            f"-nsqd-http-address={address}", "-http-client-request-timeout=500ms"
        )
        began = time.monotonic()
        message = said(admin, "/api/topics", 502)["message"]
        assert 0.4 < time.monotonic() - began < 25
        assert message.endswith("(Client.Timeout exceeded while awaiting headers)")


def test_an_nsqd_that_answers_nonsense(site: Site) -> None:
    with serving(b"notjson") as (address, _):
        admin = site.own_nsqadmin(f"-nsqd-http-address={address}")
        said(admin, "/api/topics", 502)
    with serving(b"oh", 500) as (address, _):
        admin = site.own_nsqadmin(f"-nsqd-http-address={address}")
        assert (
            'got response 500 Internal Server Error "oh"'
            in (said(admin, "/api/topics", 502)["message"])
        )


def test_an_nsqd_that_wants_tls(site: Site) -> None:
    certificates = site.certificates
    nsqd = site.own_nsqd(*certificates.flags, "-tls-required=true")
    asked = f"-nsqd-http-address={place(nsqd)}"
    message = said(site.own_nsqadmin(asked), "/api/topics", 502)["message"]
    assert f'Get "https://127.0.0.1:{nsqd.https_address[1]}/stats?format=json' in message
    assert "certificate" in message
    for flag in (
        "-http-client-tls-insecure-skip-verify",
        f"-http-client-tls-root-ca-file={certificates.ca_file}",
    ):
        admin = site.own_nsqadmin(asked, flag)
        assert said(admin, "/api/topics")["topics"] is None
        assert do(admin, "/api/topics", topic="t") == ""


def test_versions_and_host_names_of_nodes(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(lookupd)}")
    versions = {"b-host": "1.3.0", "a-host": "1.2.0", "c-host": "x.y", "d-host": "1.3.0-rc1"}
    for number, (host, version) in enumerate(versions.items(), 1):
        client = site.lookup_client(lookupd)
        client.identify(
            hostname=host, broadcast_address=host, tcp_port=number, http_port=1, version=version
        )
    site.eventually(lambda: len(ask(lookupd, "/nodes").json()["producers"]) == 4)
    nodes = said(admin, "/api/nodes")["nodes"]
    assert [(node["hostname"], node["out_of_date"]) for node in nodes] == [
        ("a-host", True),
        ("b-host", False),
        ("c-host", True),
        ("d-host", True),
    ]


def test_a_node_with_an_ipv6_address(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(lookupd)}")
    client = site.lookup_client(lookupd)
    client.identify(hostname="h", broadcast_address="::1", tcp_port=1, http_port=1, version="1.3.0")
    site.eventually(lambda: len(ask(lookupd, "/nodes").json()["producers"]) == 1)
    # It is known, and dead.
    said(admin, "/api/nodes/[::1]:1", 502)
    said(admin, "/api/nodes/::1:1", 404)


# -- rights, /config, notifications, base path, graphite ------------------------------------------


def test_admin_users(cluster: Cluster, site: Site) -> None:
    lookupd = f"-lookupd-http-address={place(cluster.l1)}"
    admin = site.own_nsqadmin(lookupd, "-admin-user=alice")
    moved = site.own_nsqadmin(lookupd, "-admin-user=alice", "-acl-http-header=X-Me")
    for path, method in (
        ("/api/topics", "POST"),
        ("/api/topics/t", "POST"),
        ("/api/topics/t", "DELETE"),
        ("/api/topics/t/c", "POST"),
        ("/api/topics/t/c", "DELETE"),
        ("/api/nodes/x:1", "DELETE"),
    ):
        for headers in ({}, {"X_Forwarded_User": "Alice"}):
            answer = ask(admin, path, method, "", **headers)
            assert (answer.status_code, answer.json()["message"]) == (403, "FORBIDDEN")
        assert ask(admin, path, method, "{", X_Forwarded_User="alice").status_code != 403
        assert ask(moved, path, method, "{", X_Forwarded_User="alice").status_code == 403
        assert ask(moved, path, method, "{", X_Me="alice").status_code != 403
    said(admin, "/api/topics")
    # nsqadmin lets everybody use /config who comes from the right network.
    named = ask(admin, "/config/log_level", X_Forwarded_User="alice")
    assert named.status_code == 200
    nobody = ask(admin, "/config/log_level")
    assert nobody.status_code == (200 if site.kind == "real" else 403)


def test_config(site: Site, cluster: Cluster) -> None:
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(cluster.l1)}")
    for name, text in (
        ("log_level", "2"),
        ("log_prefix", "[nsqadmin] "),
        ("statsd_interval", "60000000000"),
    ):
        assert ask(admin, f"/config/{name}").text == text
    for name in ("lookupd_http_address", "log-level", "nope"):
        answer = ask(admin, f"/config/{name}")
        assert (answer.status_code, answer.json()["message"]) == (400, "INVALID_OPTION")
    assert ask(admin, "/config/log_level", "PUT", "debug").text == "1"
    assert ask(admin, "/config/log_level", "PUT", "WARN").text == "3"
    for body, status in (
        ("bogus", 400),
        ('"info"', 400),
        ("info\n", 400),
        ("", 413),
        ("x" * 1048576, 400),
        ("x" * 1048577, 413),
    ):
        assert ask(admin, "/config/log_level", "PUT", body).status_code == status


def test_who_may_use_config(site: Site, cluster: Cluster) -> None:
    lookupd = f"-lookupd-http-address={place(cluster.l1)}"
    admin = site.own_nsqadmin(lookupd, "-allow-config-from-cidr=10.0.0.0/8")
    answer = ask(admin, "/config/log_level", X_Forwarded_For="10.1.1.1")
    assert (answer.status_code, answer.json()["message"]) == (403, "FORBIDDEN")
    for cidr in ("", "0.0.0.0/0"):
        admin = site.own_nsqadmin(lookupd, f"-allow-config-from-cidr={cidr}")
        assert ask(admin, "/config/log_level").status_code == 200


def test_notifications(site: Site, cluster: Cluster) -> None:
    topic = cluster.topic(site)
    with serving(b"") as (address, asked):
        admin = site.own_nsqadmin(
            f"-lookupd-http-address={place(cluster.l1)}",
            f"-notification-http-endpoint=http://{address}/told",
        )
        name, password = "Ann", "secret"
        credentials = base64.b64encode(f"{name}:{password}".encode()).decode()
        body = json.dumps({"action": "pause"})
        ask(
            admin,
            f"/api/topics/{topic}/c",
            "POST",
            body,
            Authorization=f"Basic {credentials}",
            User_Agent="script",
        )
        site.eventually(lambda: asked)
        told = json.loads(asked[0][2])
        assert told.pop("remote_ip").startswith("127.0.0.1:")
        assert abs(told.pop("timestamp") - time.time()) < 60
        assert told == {
            "action": "pause_channel",
            "topic": topic,
            "channel": "c",
            "user": name,
            "user_agent": "script",
            "url": f"http://{place(admin)}/api/topics/{topic}/c",
            "via": socket.gethostname(),
        }
        do(admin, f"/api/topics/{topic}", action="unpause")
        do(admin, f"/api/topics/{topic}", action="empty")
        do(admin, f"/api/topics/{topic}/c", action="unpause")
        do(admin, f"/api/topics/{topic}/c", action="empty")
        do(admin, f"/api/topics/{topic}", action="pause")
        do(admin, "/api/topics", topic=topic, channel="c2")
        do(admin, f"/api/topics/{topic}/c2", "DELETE")
        do(admin, f"/api/nodes/{place(cluster.n2)}", "DELETE", topic=topic)
        do(admin, f"/api/topics/{topic}", "DELETE")
        # The topic is gone: empty tells of itself all the same, delete does not.
        do(admin, "/api/topics/none", status=502, action="empty")
        do(admin, "/api/topics/none", "DELETE", 502)
        do(admin, "/api/topics/none", status=400, action="nope")
        site.eventually(lambda: len(asked) == 12, describe=lambda: asked)
        told_of = [json.loads(body)["action"] for _, _, body in asked]
        actions = [
            "pause_channel",
            "unpause_topic",
            "empty_topic",
            "unpause_channel",
            "empty_channel",
            "pause_topic",
            "create_topic",
            "create_channel",
            "delete_channel",
            "tombstone_topic_producer",
            "delete_topic",
            "empty_topic",
        ]
        assert sorted(told_of) == sorted(actions)
        # The real nsqadmin tells of each from a goroutine of its own, in any order.
        assert site.kind == "real" or told_of == actions


def test_an_endpoint_that_is_gone(site: Site, cluster: Cluster, dead: str) -> None:
    """The real nsqadmin crashes; ours logs it."""
    admin = site.own_nsqadmin(
        f"-lookupd-http-address={place(cluster.l1)}", f"-notification-http-endpoint=http://{dead}"
    )
    try:
        do(admin, "/api/topics", topic=unique("made"))
    except requests.ConnectionError:
        # The real one may crash before it has answered.
        assert site.kind == "real"
    site.eventually(lambda: "ERROR: failed to POST notification - " in admin.log)
    if site.kind == "embedded":
        assert ask(admin, "/ping").text == "OK"
    else:
        assert admin.process is not None
        assert admin.process.wait(60) == 2


def test_the_base_path(site: Site, cluster: Cluster) -> None:
    admin = site.own_nsqadmin(f"-lookupd-http-address={place(cluster.l1)}", "-base-path=adm/")
    assert ask(admin, "/adm/ping").text == "OK"
    assert said(admin, "/adm/api/topics")["message"] == ""
    assert ask(admin, "/adm").status_code == 200
    assert "/adm/static/" in ask(admin, "/adm").text
    back = ask(admin, "/adm/")
    if site.kind == "real":
        # Behind a proxy that redirects /adm to /adm/ this has no end.
        assert (back.status_code, back.headers["Location"]) == (301, "/adm")
        assert ask(admin, "/").status_code == 404
        assert ask(admin, "/ping").status_code == 404
    else:
        assert back.status_code == 200
        # A proxy may have cut the base path off.
        assert "/adm/static/" in ask(admin, "/").text
        assert ask(admin, "/ping").text == "OK"


def test_graphite(site: Site, cluster: Cluster) -> None:
    points = json.dumps([{"target": "a", "datapoints": [[120, 1], [5, 2]]}]).encode()
    with serving(points) as (address, asked):
        admin = site.own_nsqadmin(
            f"-lookupd-http-address={place(cluster.l1)}",
            f"-graphite-url=http://u:p@{address}",
            "-proxy-graphite",
            "-statsd-interval=30s",
        )
        assert ask(admin, "/api/graphite?metric=rate&target=a").text == '{"rate":"4.00"}'
        assert "from=-60sec" in asked[0][0]
        assert "until=-30sec" in asked[0][0]
        assert ask(admin, "/render?x=1").content == points
        path, headers, _ = asked[1]
        assert path == "/render?x=1"
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"u:p").decode()
        assert ask(admin, "/render?x=1", "POST").status_code == 405
        assert said(admin, "/api/graphite", 400)["message"] == "INVALID_ARG_METRIC"
        bad = said(admin, "/api/graphite?metric=rate", 400)["message"]
        assert bad == "INVALID_ARG_TARGET"
    with serving(b'[{"target": "a", "datapoints": [[-5, 1]]}]') as (address, _):
        admin = site.own_nsqadmin(
            f"-lookupd-http-address={place(cluster.l1)}", f"-graphite-url=http://{address}"
        )
        assert ask(admin, "/api/graphite?metric=rate&target=a").text == '{"rate":"N/A"}'
    with serving(b"[]") as (address, _):
        admin = site.own_nsqadmin(
            f"-lookupd-http-address={place(cluster.l1)}", f"-graphite-url=http://{address}"
        )
        assert said(admin, "/api/graphite?metric=rate&target=a", 500)["message"] == "INTERNAL_ERROR"


# -- starting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "--nsqd-http-address or --lookupd-http-address required"),
        (
            ("-lookupd-http-address=a:1", "-nsqd-http-address=b:1"),
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            ("-lookupd-http-address=x",),
            "failed to resolve --lookupd-http-address (x) - address x: missing port in address",
        ),
        (
            ("-nsqd-http-address=127.0.0.1:1", "-http-client-tls-cert=c"),
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            ("-nsqd-http-address=127.0.0.1:1", "-allow-config-from-cidr=1.2.3.4"),
            "failed to parse --allow-config-from-cidr (1.2.3.4) - invalid CIDR address: 1.2.3.4",
        ),
    ],
)
def test_starts_that_fail(server_kind: str, flags: tuple[str, ...], text: str) -> None:
    server = Server(server_kind, "nsqadmin", flags)
    try:
        assert server.run_to_the_end() == 1
        assert f"FATAL: failed to instantiate nsqadmin - {text}" in server.log
    finally:
        server.discard()


def test_unknown_flags_and_the_version(server_kind: str) -> None:
    for flag, status in (("-nope", 2), ("--version", 0)):
        server = Server(server_kind, "nsqadmin", [flag])
        try:
            assert server.run_to_the_end() == status
        finally:
            server.discard()


def test_a_foreign_page_may_not_act(cluster: Cluster) -> None:
    """The real nsqadmin takes it."""
    name = unique("foreign")
    answer = ask(
        cluster.a,
        "/api/topics",
        "POST",
        json.dumps({"topic": name}),
        Origin="http://evil.example",
        Content_Type="text/plain",
    )
    assert answer.status_code == (403 if cluster.a.kind == "embedded" else 200)
