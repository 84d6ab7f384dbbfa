"""A cluster with servers that lie: each is a warning, or unknown, and nothing breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnsqsync.admin import shapes
from gnsqsync.admin.cluster import AllFailed, Cluster, told
from gnsqsync.admin.figures import node_figures
from gnsqsync.admin.upstream import Failed
from tests.component.admin.test_cluster import NewCluster, Paths, nsqd_answers
from tests.component.admin.test_cluster import cluster_of as cluster_of
from tests.support.serving import FakeServer, Serving, fake_server


def lookupd(**lies: Any) -> dict[str, Any]:
    """Knows an honest nsqd, which is away, and one that lies of itself."""
    honest = {
        "remote_address": "127.0.0.1:5",
        "hostname": "honest",
        "broadcast_address": "127.0.0.1",
        "tcp_port": 1,
        "http_port": 1,
        "version": "1.3.0",
        "topics": ["t"],
        "tombstones": [False],
    }
    known = {"producers": [honest, {**honest, "hostname": "liar", "tcp_port": 2, **lies}]}
    return {"/nodes": known, "/lookup": known}


@pytest.mark.parametrize(
    "lies",
    [
        {"broadcast_address": ""},
        {"broadcast_address": "a b"},
        {"broadcast_address": "x/y?z"},
        {"broadcast_address": "u:p@127.0.0.1"},
        {"broadcast_address": "a\r\nb"},
        {"broadcast_address": "[::1]"},
        {"broadcast_address": "\ud800"},
        {"http_port": 0},
        {"http_port": -1},
        {"http_port": 99999},
    ],
    ids=repr,
)
def test_an_invalid_address(cluster_of: NewCluster, lies: dict[str, Any]) -> None:
    server = Paths(lookupd(**lies))
    with Serving(server):
        cluster = cluster_of([], [server.address])
        nodes, _ = cluster.nodes()
        assert [node["hostname"] for node in nodes] == ["honest", "liar"]
        with pytest.raises(AllFailed, match="failed to query any nsqd"):
            cluster.topic("t")
        with pytest.raises(Failed):
            cluster.stats_of("127.0.0.1:99999", dict)


@pytest.mark.parametrize("version", ["9" * 5000 + ".0.0", "1.0.0-" + "9" * 5000])
def test_a_version_of_thousands_of_digits(cluster_of: NewCluster, version: str) -> None:
    server = Paths(lookupd(version=version))
    with Serving(server):
        nodes, _ = cluster_of([], [server.address]).nodes()
    assert [node["out_of_date"] for node in nodes] == [False, True]
    assert shapes.version(version) == shapes.version("0.0.0")


def one_nsqd(
    cluster_of: NewCluster, server: FakeServer, stats: dict[str, Any], lie: str = ""
) -> Cluster:
    """It gives one answer to all that it is asked, with ``lie`` for "LIE"."""
    own = {"broadcast_address": "127.0.0.1", "http_port": server.server_port, **stats}
    server.answer(json.dumps(own).replace('"LIE"', lie).encode())
    return cluster_of([server.address])


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("NaN", "NaN is no number"),
        ("-Infinity", "-Infinity is no number"),
        ("1e999", "1e999 is no number"),
        ("1" + "0" * 30, "'value' of a percentile is too large"),
        ("1" + "0" * 5000, "the answer is not JSON"),
        ('"x"', "'value' of a percentile is a str"),
        ("[" * 100_000, "the answer is not JSON"),
    ],
    ids=lambda text: text[:40],
)
def test_invalid_numbers(cluster_of: NewCluster, lie: str, reason: str) -> None:
    stats = nsqd_answers("liar", depth=5)["/stats"]
    stats["topics"][0]["e2e_processing_latency"]["percentiles"][0]["value"] = "LIE"
    with fake_server() as server, pytest.raises(AllFailed) as caught:
        one_nsqd(cluster_of, server, stats, lie).channel("t", "c")
    assert reason in str(caught.value)


def test_a_count_that_is_too_large(cluster_of: NewCluster) -> None:
    stats = nsqd_answers("liar", depth=10**30)["/stats"]
    with fake_server() as server, pytest.raises(AllFailed, match="'message_count' is too large"):
        one_nsqd(cluster_of, server, stats).topic("t")


def test_a_broken_entry_hides_no_other(cluster_of: NewCluster) -> None:
    """A topic, a channel and a client that nobody can read, beside those that all can."""
    stats = nsqd_answers("liar", depth=5)["/stats"]
    topic = stats["topics"][0]
    topic["channels"].append({"channel_name": "odd", "depth": "many"})
    topic["channels"][0]["clients"] = [{"client_id": 5}, {"client_id": "me"}]
    stats["topics"] += [{"topic_name": 7}, 8, {"topic_name": "u"}]
    with fake_server() as server:
        cluster = one_nsqd(cluster_of, server, stats)
        names, errors = cluster.topics()
        assert names == ["t", "u"]
        assert [error.partition(": ")[2] for error in errors] == [
            "an entry of 'topics' is left out: 'topic_name' is a int, not a str",
            "an entry of 'topics' is left out: 'topics' has entries that are not objects",
        ]
        found, (_, errors) = cluster.topic("t")
        assert [channel["channel_name"] for channel in found["channels"]] == ["c"]
        text = "the entry 'odd' of 'channels' is left out: 'depth' is a str, not a int"
        assert text in "".join(errors)
        channel, _ = cluster.channel("t", "c")
        assert channel is not None
        assert [client["client_id"] for client in channel["clients"]] == ["me"]
        figures = cluster.stats_of(server.address, lambda stats: node_figures(stats, 0.0))
    assert {name: [*topic.channels] for name, topic in figures.topics.items()} == {
        "t": ["c"],
        "u": [],
    }
    assert len(figures.left_out) == 3


def test_a_name_of_nsqlookupd_that_is_no_text_hides_no_other(cluster_of: NewCluster) -> None:
    paths = lookupd(topics=["t", 8, "u"], tombstones=[False, False, True])
    server = Paths(
        {**paths, "/topics": {"topics": [7, "t", None]}, "/channels": {"channels": [7, "c"]}}
    )
    with Serving(server):
        cluster = cluster_of([], [server.address])
        names, errors = cluster.topics()
        assert names == ["t"]
        assert [error.partition(": ")[2] for error in errors] == [
            "entry 0 of 'topics' is left out: it is a int",
            "entry 2 of 'topics' is left out: it is a NoneType",
        ]
        assert cluster._channel_names("t") == ["c"]
        nodes, _ = cluster.nodes()
        assert nodes[1]["topics"] == [
            {"topic": "t", "tombstoned": False},
            {"topic": "u", "tombstoned": True},
        ]
    with pytest.raises(Failed, match="entries that are not strings"):
        shapes.strings({"topics": [7]}, "topics", print)


def test_many_broken_entries_are_counted() -> None:
    lines = told("nsqd x", ["wrong"] * 7)
    assert lines[:5] == ["nsqd x: wrong"] * 5
    assert lines[5:] == ["nsqd x: 2 more entries are left out"]


def test_a_broken_node_of_nsqlookupd_hides_no_other(cluster_of: NewCluster) -> None:
    server = Paths(lookupd(http_port="none"))
    with Serving(server):
        nodes, errors = cluster_of([], [server.address]).nodes()
    assert [node["hostname"] for node in nodes] == ["honest"]
    assert "the entry 'liar' of 'producers' is left out: 'http_port' is a str" in errors[0]


def test_half_a_character(cluster_of: NewCluster) -> None:
    server = Paths(lookupd(hostname="\ud800é\U0001f600", topics=["\udfff"]))
    with Serving(server):
        nodes, _ = cluster_of([], [server.address]).nodes()
    (liar,) = (node for node in nodes if node["hostname"] != "honest")
    assert liar["hostname"] == "?é\U0001f600"
    assert liar["topics"] == [{"topic": "?", "tombstoned": False}]


def test_a_list_of_nonsense_is_no_list_of_sentences() -> None:
    left_out: list[str] = []
    topics = [{"topic_name": "t", "channels": []}, *range(1002)]
    with pytest.raises(Failed, match="more than 1000 entries of 'topics'"):
        shapes.each({"topics": topics}, "topics", dict, left_out.append)
    with pytest.raises(Failed, match="more than 1000 entries of 'topics'"):
        shapes.strings({"topics": ["t", *range(1001)]}, "topics", left_out.append)
    assert not left_out
