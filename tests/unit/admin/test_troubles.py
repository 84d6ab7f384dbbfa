"""What is wrong with a topic, by counts and rates alone."""

from __future__ import annotations

import math

import pytest

from gnsqsync.admin.figures import (
    ChannelFigures,
    NodeFigures,
    Rates,
    TopicFigures,
    TopicRates,
    add_up,
    node_figures,
    rates_between,
)
from gnsqsync.admin.pages.texts import drain_text, duration_text, rate_text, spark_points
from gnsqsync.admin.troubles import Level, channel_row, topic_row
from gnsqsync.admin.upstream import Failed

GOOD = ChannelFigures(0, 1, 0, 0, 0, 10, 2, False)


def told(figures: ChannelFigures, rates: Rates | None = None) -> list[tuple[Level, str]]:
    row = channel_row("c", figures, rates or Rates(), figures)
    return [tuple(trouble) for trouble in row.troubles]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("figures", "rates", "level", "text"),
    [
        (GOOD._replace(clients=0, depth=3), Rates(), Level.BAD, "no consumers"),
        (GOOD._replace(clients=0), Rates(), Level.NOTE, "no consumers"),
        (GOOD._replace(paused=True, depth=3), Rates(), Level.WARNING, "paused"),
        (GOOD._replace(paused=True), Rates(), Level.NOTE, "paused"),
        (GOOD._replace(depth=3, in_flight=0), Rates(), Level.BAD, "take nothing"),
        (GOOD, Rates(timed_out=2), Level.WARNING, "2.0 time-outs/s"),
        (GOOD, Rates(outgoing=10, requeued=2), Level.WARNING, "2.0 requeues/s"),
        (GOOD._replace(depth=100), Rates(incoming=5, outgoing=1), Level.WARNING, "grows"),
        (GOOD._replace(depth=9000), Rates(incoming=1, outgoing=2), Level.WARNING, "drains slowly"),
    ],
)
def test_what_is_told(figures: ChannelFigures, rates: Rates, level: Level, text: str) -> None:
    ((found, words),) = told(figures, rates)
    assert found == level
    assert text in words


def test_what_is_not_told() -> None:
    assert told(GOOD) == []
    # A tenth of what leaves may be requeued.
    assert told(GOOD, Rates(incoming=100, outgoing=100, requeued=5)) == []
    # Something is in flight, or left since the look before.
    assert told(GOOD._replace(depth=3), Rates(outgoing=1)) == []


def test_one_look_is_not_enough_for_consumers_that_take_nothing() -> None:
    stuck = GOOD._replace(depth=3, in_flight=0)
    assert channel_row("c", stuck, None, None).troubles == ()
    assert channel_row("c", stuck, Rates(), GOOD).drain == math.inf


def test_until_empty() -> None:
    def drain(depth: int, rates: Rates | None) -> float | None:
        return channel_row("c", GOOD._replace(depth=depth), rates, None).drain

    assert drain(0, None) == 0
    assert drain(5, None) is None
    assert drain(100, Rates(incoming=5, outgoing=15)) == 10
    assert drain(100, Rates(incoming=5, outgoing=5)) == math.inf


def test_a_topic_without_a_channel() -> None:
    row = topic_row("t", TopicFigures(4, 4, False, 1, {}), TopicRates(), None)
    assert (row.level, row.waiting, row.slowest) == (Level.WARNING, 4, None)
    empty = topic_row("t", TopicFigures(0, 4, False, 1, {}), TopicRates(), None)
    assert empty.level == Level.GOOD


def test_the_worst_trouble_comes_first() -> None:
    channels = {"a": GOOD._replace(paused=True), "b": GOOD._replace(clients=0, depth=7)}
    row = topic_row("t", TopicFigures(1, 9, True, 2, channels), TopicRates(), None)
    assert row.level == Level.BAD
    assert [trouble.level for trouble in row.troubles] == [Level.BAD, Level.WARNING, Level.NOTE]
    assert row.slowest is not None
    assert (row.slowest.name, row.waiting) == ("b", 8)


def node(at: float, messages: int, depth: int = 0, requeued: int = 0) -> NodeFigures:
    channel = ChannelFigures(depth, 0, 0, requeued, 0, messages, 1, False)
    return NodeFigures(at, {"t": TopicFigures(0, messages, False, 1, {"c": channel})})


def test_rates_are_of_each_nsqd_and_summed() -> None:
    found = rates_between([(node(0, 100, 50), node(2, 200, 30, 4)), (node(0, 10), node(4, 50))])[
        "t"
    ]
    assert found.own.incoming == 50 + 10
    channel = found.channels["c"]
    assert (channel.incoming, channel.outgoing, channel.requeued) == (60, 60 + 10, 2)


def test_a_restarted_nsqd_has_no_rates() -> None:
    found = rates_between([(node(0, 1000), node(2, 5))])["t"]
    assert found.own.incoming == 0
    assert found.channels == {}


def test_sums() -> None:
    total = add_up([node(0, 5, 2), node(0, 7, 1)])["t"]
    assert (total.nodes, total.messages) == (2, 12)
    assert (total.channels["c"].depth, total.channels["c"].left) == (3, 9)


def test_an_answer_that_is_none() -> None:
    with pytest.raises(Failed, match="'depth' is a str, not a int"):
        node_figures({"topics": [{"topic_name": "t", "depth": "x"}]}, 0)


def test_texts() -> None:
    assert [duration_text(s) for s in (0, 61, 3600, 90061)] == ["0s", "1m 1s", "1h 0m", "1d 1h"]
    assert [drain_text(s) for s in (None, 0, 0.2, math.inf)] == ["", "", "1s", "not shrinking"]
    assert [rate_text(r) for r in (0, 0.25, 9.94, 12345.6)] == ["0", "0.2", "9.9", "12,346"]
    assert spark_points([1]) == ""
    assert spark_points([0, 10]) == "0.0,19.0 100.0,1.0"
