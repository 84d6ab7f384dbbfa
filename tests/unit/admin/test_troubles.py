"""What is wrong with a topic, by counts and rates alone."""

from __future__ import annotations

import itertools
import math
import re
from typing import Literal

import pytest

from gnsqsync.admin.figures import (
    NodeFigures,
    Rates,
    Span,
    TopicRates,
    node_figures,
    rates_between,
    rates_over,
)
from gnsqsync.admin.options import AdminOptions
from gnsqsync.admin.pages.graphite import target
from gnsqsync.admin.pages.texts import drain_text, duration_text, rate_text, spark_points
from gnsqsync.admin.troubles import Level, channel_row, letters_of, topic_row
from gnsqsync.admin.upstream import Failed
from gnsqsync.cluster.totals import ChannelTotal, TopicTotal, add_up
from gnsqsync.embedded.statsd import Meter, expand_prefix

GOOD = ChannelTotal(0, 1, 0, 0, 0, 10, 2, False)


def told(figures: ChannelTotal, rates: Rates | None = None) -> list[tuple[Level, str]]:
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
def test_troubles_that_are_told(
    figures: ChannelTotal, rates: Rates, level: Level, text: str
) -> None:
    ((found, words),) = told(figures, rates)
    assert found == level
    assert text in words


def test_states_that_are_no_trouble() -> None:
    assert told(GOOD) == []
    # A tenth of what leaves may be requeued.
    assert told(GOOD, Rates(incoming=100, outgoing=100, requeued=5)) == []
    # Something is in flight, or left since the look before.
    assert told(GOOD._replace(depth=3), Rates(outgoing=1)) == []


def test_one_look_is_not_enough_for_consumers_that_take_nothing() -> None:
    stuck = GOOD._replace(depth=3, in_flight=0)
    assert channel_row("c", stuck, None, None).troubles == ()
    assert channel_row("c", stuck, Rates(), GOOD).drain == math.inf


def test_the_estimate_until_a_channel_is_empty() -> None:
    def drain(depth: int, rates: Rates | None) -> float | None:
        return channel_row("c", GOOD._replace(depth=depth), rates, None).drain

    assert drain(0, None) == 0
    assert drain(5, None) is None
    assert drain(100, Rates(incoming=5, outgoing=15)) == 10
    assert drain(100, Rates(incoming=5, outgoing=5)) == math.inf
    # A busy channel that keeps up has a few messages at each look.
    assert drain(17, Rates(incoming=235, outgoing=170)) == 0.1


def test_a_topic_without_a_channel() -> None:
    row = topic_row("t", TopicTotal(4, 4, False, 1, {}), TopicRates(), None)
    assert (row.level, row.waiting, row.slowest) == (Level.WARNING, 4, None)
    empty = topic_row("t", TopicTotal(0, 4, False, 1, {}), TopicRates(), None)
    assert empty.level == Level.GOOD


def test_the_worst_trouble_comes_first() -> None:
    channels = {"a": GOOD._replace(paused=True), "b": GOOD._replace(clients=0, depth=7)}
    row = topic_row("t", TopicTotal(1, 9, True, 2, channels), TopicRates(), None)
    assert row.level == Level.BAD
    assert [trouble.level for trouble in row.troubles] == [Level.BAD, Level.WARNING, Level.NOTE]
    assert row.slowest is not None
    assert (row.slowest.name, row.waiting) == ("b", 8)


def node(at: float, messages: int, depth: int = 0, requeued: int = 0) -> NodeFigures:
    channel = ChannelTotal(depth, 0, 0, requeued, 0, messages, 1, False)
    return NodeFigures(at, {"t": TopicTotal(0, messages, False, 1, {"c": channel})})


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
    total = add_up(one.topics for one in (node(0, 5, 2), node(0, 7, 1)))["t"]
    assert (total.nodes, total.messages) == (2, 12)
    assert (total.channels["c"].depth, total.channels["c"].left) == (3, 9)


def test_an_invalid_answer() -> None:
    with pytest.raises(Failed, match="'depth' is a str, not a int"):
        node_figures({"topics": [{"topic_name": "t", "depth": "x"}]}, 0)


def test_texts() -> None:
    assert [duration_text(s) for s in (0, 61, 3600, 90061)] == ["0s", "1m 1s", "1h 0m", "1d 1h"]
    assert [drain_text(s) for s in (None, 0, 0.2, math.inf)] == ["", "", "1s", "not shrinking"]
    assert [rate_text(r) for r in (0, 0.25, 9.94, 12345.6)] == ["0", "0.2", "9.9", "12,346"]
    assert spark_points([1]) == ""
    assert spark_points([0, 10]) == "0.0,19.0 100.0,1.0"


def test_consumers_that_have_all_sent_rdy_0_are_told_at_the_first_look() -> None:
    stuck = GOOD._replace(depth=4394, in_flight=0)
    figures = TopicTotal(0, 1, False, 1, {"c": stuck})
    row = topic_row("t", figures, None, None, idle={"c"})
    assert [trouble.text for trouble in row.troubles] == [
        "c: consumers take nothing (RDY 0 or backoff)"
    ]
    # A message in flight is one that somebody took.
    busy = TopicTotal(0, 1, False, 1, {"c": GOOD._replace(depth=3)})
    assert topic_row("t", busy, None, None, idle={"c"}).troubles == ()


def test_a_rate_is_of_the_time_that_it_names() -> None:
    """A burst that is over has no part in it, and is not smeared over the time after it."""
    looks = [node(0, 0), node(2, 4394), *(node(at, 4394 + at) for at in range(4, 14, 2))]
    spans = [
        Span(after.at - before.at, rates_between([(before, after)]))
        for before, after in itertools.pairwise(looks)
    ]
    assert rates_over(spans[:1], "t").own.incoming == 2197
    assert rates_over(spans[:5], "t").own.incoming == (4394 + 10) / 10
    assert rates_over(spans[-4:], "t").own.incoming == 1
    assert rates_over(spans[-4:], "t").channels["c"].outgoing == 1
    assert rates_over(spans, "another").own.incoming == 0


def test_a_topic_whose_nsqds_are_away_is_there() -> None:
    nothing = TopicTotal(0, 0, False, 0, {})
    row = topic_row("t", nothing, None, None, away=["10.0.0.5:4151"])
    assert (row.level, row.is_known) == (Level.BAD, False)
    assert row.troubles[0].text == "nsqd 10.0.0.5:4151 cannot be reached"
    row = topic_row("t", nothing, None, None, away=["a:1", "b:1"])
    assert row.troubles[0].text == "2 of 2 nsqds cannot be reached"
    some = TopicTotal(0, 4, False, 1, {"c": GOOD})
    row = topic_row("t", some, TopicRates(), None, away=["a:1"])
    assert (row.level, row.is_known) == (Level.WARNING, True)
    row = topic_row("t", nothing, None, None)
    assert [tuple(trouble) for trouble in row.troubles] == [
        (Level.NOTE, "no registered nsqd has it")
    ]
    row = topic_row("t", nothing, None, None, was_there=True)
    assert (row.level, row.troubles[0].text) == (
        Level.WARNING,
        "its nsqd has stopped or unregistered",
    )


def letters(**channels: ChannelTotal) -> list[tuple[Level, str]]:
    figures = TopicTotal(0 if channels else 3, 3, False, 1, channels)
    row = topic_row("sales.made.dead", figures, None, None, letters_of="sales.made")
    return [tuple(trouble) for trouble in row.troubles]  # type: ignore[misc]


def test_dead_letters_are_called_so() -> None:
    unread = GOOD._replace(clients=0, depth=3)
    told = [(Level.WARNING, "3 dead letters of sales.made")]
    assert letters() == told
    assert letters(dead_letters=unread) == told
    assert letters(dead_letters=unread._replace(depth=0)) == []
    # A topic of dead letters may have consumers.
    assert letters(mend=GOOD) == []
    assert letters(mend=GOOD._replace(depth=3, paused=True)) == [(Level.WARNING, "mend is paused")]


def test_the_owner_of_dead_letters() -> None:
    def topic(*channels: str) -> TopicTotal:
        return TopicTotal(0, 0, False, 1, dict.fromkeys(channels, GOOD))

    topics = {
        "sales.made": topic("billing"),
        "sales.made.dead": topic(),
        "sales.made.billing.dead": topic("x"),
        "walking.dead": topic("episodes"),
        "gone-dlq": topic("send-back"),
        "sales": topic(),
    }
    found = {name: letters_of(name, topics) for name in topics}
    assert found == {
        "sales.made": "",
        "sales.made.dead": "sales.made",
        "sales.made.billing.dead": "sales.made",
        "walking.dead": "",
        "gone-dlq": "gone",
        "sales": "",
    }


SERIES = [
    ({}, "stats.gauges.nsq.127_0_0_1_4151.topic.{}.depth", "depth", "g"),
    ({}, "stats.counters.nsq.127_0_0_1_4151.topic.{}.message_count.count", "message_count", "c"),
    ({"statsd_prefix": "prod"}, "stats.gauges.prod.topic.{}.depth", "depth", "g"),
    ({"statsd_prefix": ""}, "stats.gauges.topic.{}.depth", "depth", "g"),
    (
        {"statsd_prefix": "%s.nsq.", "statsd_gauge_format": "g.%s"},
        "g.127_0_0_1_4151.nsq.topic.{}.depth",
        "depth",
        "g",
    ),
]


@pytest.mark.parametrize("name", ["orders", "sales.made", "mails#ephemeral"])
@pytest.mark.parametrize(("options", "series", "key", "kind"), SERIES)
def test_links_name_series_that_statsd_writes(
    options: dict[str, str], series: str, key: str, kind: Literal["g", "c"], name: str
) -> None:
    prefix = expand_prefix(options.get("statsd_prefix", "nsq.%s"), "127.0.0.1", 4151)
    quantiles = {"percentiles": None}
    topic = {"topic_name": name, "channels": [], "e2e_processing_latency": quantiles}
    topic |= dict.fromkeys(("message_count", "message_bytes", "depth", "backend_depth"), 7)
    pushed = [line.decode() for line in Meter(prefix).lines([topic], None)]
    # A line that nsqd pushes, in the format that statsd gives it.
    assert f"{prefix}topic.{name}.{key}:7|{kind}\n" in pushed
    written = series.format(name)
    found = target(
        AdminOptions(**options), f"topic.{name}.{key}", "gauge" if kind == "g" else "counter"
    )
    assert found.startswith("sumSeries(")
    pattern = re.escape(found[len("sumSeries(") : -1]).replace(r"\*", "[^.]*")
    assert re.fullmatch(pattern, written)
    assert re.fullmatch(pattern, written.replace("#", ""))
