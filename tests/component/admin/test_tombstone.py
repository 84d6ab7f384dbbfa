"""A tombstone goes to an nsqd that an nsqlookupd lists, and to no other host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from gnsqsync.admin.actions import Actions, NotListed, Visitor
from gnsqsync.admin.cluster import Cluster

VISITOR = Visitor("", "127.0.0.1:5", "", "http://127.0.0.1:4171/")
NODE = {"broadcast_address": "127.0.0.1", "http_port": 4151}


class Told:
    """Stands for a cluster, and keeps what servers are told."""

    def __init__(self, lookupds: tuple[str, ...] = ("l:1",)) -> None:
        self.lookupds = lookupds
        self.posts: list[tuple[str, tuple[str, ...], str]] = []

    def forget(self) -> None:
        pass

    def nodes(self) -> tuple[list[dict[str, Any]], list[str]]:
        return [NODE], []

    def post(self, kind: str, addresses: Any, path: str, params: object) -> list[str]:
        self.posts.append((kind, tuple(addresses), path))
        return []


def test_a_listed_nsqd_is_told() -> None:
    told = Told()
    actions = Actions(told, Mock(), Mock())  # type: ignore[arg-type]
    assert actions.tombstone("t", "127.0.0.1:4151", VISITOR) == []
    assert told.posts == [
        ("nsqlookupd", ("l:1",), "/topic/tombstone"),
        ("nsqd", ("127.0.0.1:4151",), "/topic/delete"),
    ]


@pytest.mark.parametrize(
    "node",
    [
        "127.0.0.1:4152",
        "169.254.169.254:80",
        "127.0.0.1:4151/x",
        "u@127.0.0.1:4151",
        "evil.example",
        "",
    ],
)
def test_another_host_is_not(node: str) -> None:
    told = Told()
    with pytest.raises(NotListed, match="No nsqlookupd lists"):
        Actions(told, Mock(), Mock()).tombstone("t", node, VISITOR)  # type: ignore[arg-type]
    assert told.posts == []


def test_without_an_nsqlookupd_nobody_is_told() -> None:
    told = Told(())
    with pytest.raises(NotListed):
        Actions(told, Mock(), Mock()).tombstone("t", "127.0.0.1:4151", VISITOR)  # type: ignore[arg-type]
    assert told.posts == []


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(["l:1"], [], lambda text: None)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("address", ["h/x:1", "h?x:1", "h#:1", "u@h:1", "h h:1", "h\\x:1"])
def test_an_nsqd_is_asked_nothing_at_what_is_more_than_an_address(
    cluster: Cluster, address: str
) -> None:
    (error,) = cluster.post("nsqd", [address], "/topic/delete", {"topic": "t"})
    assert "is no address of an nsqd" in error
