"""Dead letters on the page of a channel, and how they go back."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import pytest

from gnsqsync import NsqdHTTP, Reader
from gnsqsync.admin import Admin
from gnsqsync.admin.dead_letters import found_in, holds
from gnsqsync.admin.troubles import letters_of, topic_row
from gnsqsync.cluster.totals import TopicTotal
from tests.component.admin.test_pages import Page, acting, address, cluster, get, made, nsqd
from tests.support.waiting import eventually

__all__ = ["cluster", "made", "nsqd"]

Cluster = tuple[Admin, NsqdHTTP]


def send_back(admin: Admin, topic: str, channel: str = "", to: str = "orders") -> Page:
    form = {"verb": "send_back", "topic": topic, "channel": channel, "to": to, "of": "archive"}
    return acting(admin, **form)


def shown(admin: Admin) -> str:
    """What the page of the channel has of dead letters, once there was a look at the topics."""
    get(admin, "/")
    text = get(admin, "/topics/orders/archive")[2]
    return text.split("<h2>Dead letters</h2>")[1].split("<h2>")[0]


def bodies(http: NsqdHTTP, topic: str, channel: str, count: int) -> list[bytes]:
    """So many messages of a channel."""
    host = http.url.partition("//")[2].rstrip("/").rpartition(":")[0]
    port = int(str(http.info().tcp_port))
    found: list[bytes] = []
    with Reader(topic, channel, nsqd_tcp_addresses=f"{host}:{port}") as reader:
        for message in reader:
            found.append(message.body)
            message.finish()
            if len(found) == count:
                return found
    raise AssertionError(found)


def test_names() -> None:
    for name in ("orders-dead", "orders.dlq", "orders-archive-dead", "orders_archive_dead_letters"):
        assert holds(name, "orders", "archive")
    assert holds("orders-dead#ephemeral", "orders", "archive#ephemeral")
    assert holds("ORDERS-DLQ", "orders", "archive")
    for name in ("orders", "dead", "orders-dead-x", "orders-metrics-dead", "xorders-dead"):
        assert not holds(name, "orders", "archive")
    assert not holds("ordersxdead", "orders", "archive")


def test_a_name_that_fits_two_channels_is_of_the_topic_that_exists() -> None:
    """Letters of ``orders.eu`` must not go back to ``orders``, which has a channel ``eu``."""

    def found(*names: str) -> list[str]:
        figures = {name: TopicTotal(1, 1, False, 1, {}) for name in names}
        rows = [
            topic_row(name, figures[name], None, None, letters_of=letters_of(name, figures))
            for name in names
        ]
        return [each.topic for each in found_in(rows, "orders", "eu")]

    assert found("orders", "orders.eu.dead", "orders-dead") == ["orders.eu.dead", "orders-dead"]
    assert found("orders", "orders.eu.dead", "orders-dead", "orders.eu") == ["orders-dead"]


def test_a_channel_without_any(cluster: Cluster) -> None:
    assert "No topic is named as one for its dead letters" in shown(cluster[0])


# "" is a topic without a channel; an older nsqadmin made "send-back".
@pytest.mark.parametrize("channel", ["", "look", "send-back"])
def test_dead_letters_go_back_to_their_topic(
    made: Callable[..., Admin], nsqd: NsqdHTTP, channel: str
) -> None:
    nsqd.create_topic("orders")
    nsqd.create_channel("orders", "archive")
    nsqd.create_topic("orders-dead")
    if channel:
        nsqd.create_channel("orders-dead", channel)
    nsqd.mpub("orders-dead", [b"%d" % number for number in range(250)])
    admin = made(nsqd_http_address=[address(nsqd)])
    if channel:
        eventually(lambda: nsqd.stats("orders-dead").topics[0].channels[0].depth == 250)
    found = shown(admin)
    assert '<td class="n" data-label="Waiting">250</td>' in found
    query = {"topic": "orders-dead", "channel": channel, "to": "orders", "of": "archive"}
    asked = get(admin, f"/send-back?{urlencode(query)}")[2]
    assert "<b>250</b> by the last look" in asked
    assert "All channels of orders get them" in asked
    status, _, text = send_back(admin, "orders-dead", channel)
    assert (status, "250 messages went from orders-dead to orders." in text) == ("200 OK", True)
    (left,) = nsqd.stats("orders-dead").topics[0].channels
    assert (left.channel_name, left.depth) == (channel or "dead_letters", 0)
    assert sorted(bodies(nsqd, "orders", "archive", 250), key=int) == [
        b"%d" % number for number in range(250)
    ]


def test_no_more_go_than_waited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are given up again meanwhile would go round for ever."""
    admin, http = cluster
    monkeypatch.setattr("gnsqsync.admin.dead_letters.MOST_AT_A_TIME", 30)
    http.create_topic("orders-dead")
    http.create_channel("orders-dead", "look")
    http.mpub("orders-dead", [b"x"] * 100)
    eventually(lambda: http.stats("orders-dead").topics[0].channels[0].depth == 100)
    assert "30 messages went" in send_back(admin, "orders-dead", "look")[2]
    eventually(lambda: http.stats("orders-dead").topics[0].channels[0].depth == 70)


def test_a_letter_that_cannot_be_published_stays(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, http = cluster
    monkeypatch.setattr("gnsqsync.dead_letters.dead_letters._MOST_OF_ANY_NSQD", 10)
    http.create_topic("orders-dead")
    http.create_channel("orders-dead", "look")
    http.pub("orders-dead", b"x" * 11)

    def kept() -> tuple[int, int]:
        (channel,) = http.stats("orders-dead").topics[0].channels
        return channel.depth, channel.in_flight_count

    eventually(lambda: kept() == (1, 0))
    text = send_back(admin, "orders-dead", "look")[2]
    assert "0 messages went" in text
    assert "body has 11 bytes" in text
    eventually(lambda: kept() == (1, 0))


def test_only_dead_letters_go(cluster: Cluster) -> None:
    admin, http = cluster
    status, _, text = send_back(admin, "orders", "archive", "other")
    assert (status, "orders is not named as dead letters of other" in text) == (
        "400 Bad Request",
        True,
    )
    assert get(admin, "/send-back?topic=orders&to=other")[0] == "400 Bad Request"
    assert [topic.topic_name for topic in http.stats().topics] == ["orders"]
