"""The sums of nsqds' counts, the verdicts on them, and guessed HTTP addresses."""

from __future__ import annotations

import pytest

from gnsqsync.addresses import Address
from gnsqsync.cluster.servers import next_port, next_ports
from gnsqsync.cluster.totals import ChannelTotal, TopicTotal, add_up
from gnsqsync.errors import ConfigError

STUCK = ChannelTotal(depth=3, messages=10, clients=2)


@pytest.mark.parametrize(
    ("channel", "is_stuck", "is_idle"),
    [
        (STUCK, True, True),
        (STUCK._replace(ready=1), True, False),
        (STUCK._replace(in_flight=1), False, False),
        (STUCK._replace(depth=0), False, False),
        (STUCK._replace(clients=0), False, False),
        (STUCK._replace(paused=True), False, False),
    ],
)
def test_a_stuck_channel(channel: ChannelTotal, is_stuck: bool, is_idle: bool) -> None:
    assert (channel.is_stuck, channel.is_idle) == (is_stuck, is_idle)


def test_each_count_is_added_up() -> None:
    one = ChannelTotal(1, 2, 3, 4, 5, 6, 7, False, 8)
    assert one.plus(one) == (2, 4, 6, 8, 10, 12, 14, False, 16)
    assert one.plus(one._replace(paused=True)).paused is True
    nsqds = [
        {"t": TopicTotal(1, 5, False, 1, {"c": one})},
        {"t": TopicTotal(2, 5, True, 1, {"d": one})},
    ]
    assert add_up(nsqds) == {"t": (3, 10, True, 2, {"c": one, "d": one})}
    assert nsqds[0]["t"].channels == {"c": one}


def test_the_http_address_is_the_next_port() -> None:
    assert next_port("nsqd") == Address("nsqd", 4151)
    assert next_port("[::1]:4150") == Address("::1", 4151)
    assert next_port("unix:///run/nsqd.sock") is next_port("nsqd:65535") is None
    assert next_ports(["nsqd:1", "nsqd:65535"]) == ["nsqd:2", "nsqd:65535"]
    with pytest.raises(ConfigError, match="no valid port"):
        next_ports(["nsqd:0"])
