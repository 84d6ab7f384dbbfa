"""The pure parts of the benchmark of waits: percentiles, outages, verdicts, tables, the picture."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.runners import waiting
from tests.bench.runners.waiting import Order
from tests.bench.waits import __main__ as command
from tests.bench.waits import docs, figures, peers, rows, stage
from tests.bench.waits.figures import Call, Figure, Goal, Sent
from tests.support.behaviour_pictures import SCHEMES


def call(at: float, number: int = 0, ok: bool = True, nsqd: int = 0) -> Call:
    return Call(at, "t", nsqd, number, 0.0, "good", 1, ok)


def calls(moments: Sequence[float], ok: bool) -> list[Call]:
    return [call(at, n, ok) for n, at in enumerate(moments)]


def test_the_handler_writes_what_the_figures_read(tmp_path: Path) -> None:
    order = Order(log=str(tmp_path / "calls"), topics=["t"], switch=str(tmp_path / "switch"))
    handle = waiting.handler_of(order)
    handle("t", b"2 7 1500000000 good", 1)
    with pytest.raises(waiting.Failure):
        handle("t", b"2 8 1500000000 poison", 3)
    (tmp_path / "switch").touch()
    with pytest.raises(waiting.Failure):
        handle("t", b"0 9 1500000000 good", 1)
    text = (tmp_path / "calls").read_text()
    good, poison, switched = figures.calls_of(text)
    assert good[1:] == ("t", 2, 7, 1.5, "good", 1, True)
    assert poison[1:] == ("t", 2, 8, 1.5, "poison", 3, False)
    assert switched[1:] == ("t", 0, 9, 1.5, "good", 1, False)


def test_half_of_the_attempts_fail_whatever_the_client(tmp_path: Path) -> None:
    handle = waiting.handler_of(Order(log=str(tmp_path / "calls"), topics=["t"]))
    for number in range(200):
        for attempts in (1, 2):
            try:
                handle("t", b"0 %d 0 half" % number, attempts)
            except waiting.Failure:
                pass
    found = figures.calls_of((tmp_path / "calls").read_text())
    for attempts in (1, 2):
        share = sum(c.ok for c in found if c.attempts == attempts) / 200
        assert 0.4 < share < 0.6


def test_a_wait_ends_with_the_first_success_and_else_with_the_run() -> None:
    sent = [Sent(0, n, 10.0, "good") for n in range(3)]
    found = figures.waits(sent, [call(11, 0, False), call(12, 0), call(15, 0), call(99, 1)], 20.0)
    assert found == [Figure(2.0), Figure(10.0, True), Figure(10.0, True)]
    assert figures.spread(found) == {
        "median": Figure(10.0, True),
        "99 %": Figure(10.0, True),
        "handled": Figure(100 / 3),
    }


def test_a_percentile_is_a_bound_if_a_waiting_message_may_change_it() -> None:
    # A message that was published late has waited for a short time only when the run ends.
    found = [Figure(float(n)) for n in range(1, 100)] + [Figure(0.1, True)]
    assert figures.part(found, 0.5) == Figure(50.0)
    assert figures.part(found, 0.99) == Figure(99.0)
    assert figures.part(found, 1.0) == Figure(99.0, True)


def test_evenness_is_the_largest_deviation_from_the_mean() -> None:
    def of(*counts: int) -> float:
        found = [call(0, nsqd=n) for n, count in enumerate(counts) for _ in range(count)]
        return figures.evenness(found, 3).value

    assert of(10, 10, 10) == 0
    assert of(8, 10, 12) == pytest.approx(20)
    assert of(30, 0, 0) == pytest.approx(200)
    assert of() == 100


def test_the_longest_wait_for_a_turn_counts_to_the_end_of_the_window() -> None:
    found = [call(1, nsqd=0), call(2, nsqd=1), call(4, nsqd=0), call(20, nsqd=1)]
    assert figures.longest_turn(found, 2, 1.0, 10.0) == Figure(8.0)
    assert figures.longest_turn(found, 3, 1.0, 10.0) == Figure(9.0)


def test_an_outage_with_a_test_after_each_pause() -> None:
    failed = calls([10, 10.1, 10.2, 12.2, 16.2, 24.2], ok=False)
    # A success in the test, then slow ones, then the full rate.
    good = calls([31, 33, *(35 + n / 20 for n in range(20))], ok=True)
    assert figures.outage(failed + good, 10.0, 30.0, 20) == {
        "calls before the first pause": Figure(3),
        "calls between two pauses": Figure(1),
        "longest pause": Figure(8.0),
        "full rate after": Figure(pytest.approx(5.95)),
    }


def test_an_outage_in_which_calls_go_on() -> None:
    steady = calls([n / 10 for n in range(300)], ok=False)
    found = figures.outage(steady, 0.0, 30.0, 20)
    assert found["calls before the first pause"] == Figure(300)
    assert found["calls between two pauses"] == Figure(0)
    twice = calls([0, 2, 2.1, 10, 10.1, 10.2], ok=False)
    assert figures.outage(twice, 0.0, 30.0, 20)["calls between two pauses"] == Figure(3)
    assert figures.outage(twice, 0.0, 30.0, 20)["full rate after"].more


def test_the_longest_stop_counts_successes_only() -> None:
    found = [call(1), call(4, ok=False), call(6), call(50)]
    assert figures.longest_stop(found, 0.0, 9.0) == Figure(5.0)
    assert figures.longest_stop([], 0.0, 9.0) == Figure(9.0)


@pytest.mark.parametrize(
    ("goal", "figure", "before", "result"),
    [
        (Goal("x", limit=5.0), Figure(5.0), None, "met"),
        (Goal("x", limit=5.0), Figure(5.1), None, "missed"),
        (Goal("x", limit=5.0), Figure(3.0, more=True), None, "missed"),
        (Goal("x", limit=50.0, least=True), Figure(50.0), None, "met"),
        (Goal("x", limit=50.0, least=True), Figure(49.0), None, "missed"),
        (Goal("x"), Figure(1.0), None, ""),
        (Goal("x", limit=5.0), None, None, ""),
        (Goal("x", as_before=0.2), Figure(125.0), Figure(100.0), "met"),
        (Goal("x", as_before=0.2), Figure(126.0), Figure(100.0), "missed"),
        (Goal("x", as_before=0.2), Figure(13.0), None, ""),
    ],
)
def test_verdict(goal: Goal, figure: Figure | None, before: Figure | None, result: str) -> None:
    assert figures.verdict(goal, figure, before) == result


ROWS = (
    ("three", "three nsqds", (Goal("median", "s", 0.06), Goal("handled", "%", 100, least=True))),
    ("idle", "idle", (Goal("CPU", "% of a core", 0.5),)),
    ("gone", "a row that failed", (Goal("median"),)),
)
RESULTS = {
    "three": {
        "ours": {"median": Figure(0.0123), "handled": Figure(99.9)},
        "go-nsq": {"median": Figure(1234.5, True), "handled": Figure(48.0)},
    },
    "idle": {"ours": {"CPU": Figure(0.5)}},
}


def test_the_table() -> None:
    table = figures.lines(ROWS, RESULTS, ["ours", "go-nsq"])
    assert table == [
        ["Row", "Figure", "ours", "go-nsq", "goal", "result"],
        ["three nsqds", "median, s", "0.012", "> 1,234", "≤ 0.06", "met"],
        ["", "handled, %", "99.9", "48", "≥ 100", "missed"],
        ["idle", "CPU, % of a core", "0.5", "-", "≤ 0.5", "met"],
    ]
    text = figures.text_table(table).splitlines()
    assert text[1] == "three nsqds" and text[2].split() == [
        *("median,", "s", "0.012", ">", "1,234", "≤", "0.06", "met")
    ]
    read = list(csv.reader(io.StringIO(figures.csv_table(table))))
    assert read[0] == table[0] and read[3][3] == "–"


def test_the_result_is_that_of_the_client_of_ours_that_ran() -> None:
    found = {"three": {"before": {"median": Figure(1.0)}, "gnsq": {"median": Figure(0.01)}}}
    rows_ = (("three", "three nsqds", (Goal("median", "s", 0.06),)),)
    assert figures.lines(rows_, found, ["before", "gnsq"])[1][-1] == "missed"
    assert figures.lines(rows_, found, ["gnsq"])[1][-1] == ""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_has_each_wait_with_a_goal(scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (bar,) = docs.bars(ROWS, RESULTS)
    assert bar == ("three nsqds: median", 0.06, {"ours": (0.0123, False), "go-nsq": (1234.5, True)})
    docs.draw([bar], scheme, tmp_path / "waits.svg")
    text = (tmp_path / "waits.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("three nsqds: median", "go-nsq", "goal", "ours"))


def test_a_plan_has_the_rate_and_keeps_no_step() -> None:
    plan = list(stage.at_rate(60.0, 5, [0, 2], "seed"))
    assert plan == list(stage.at_rate(60.0, 5, [0, 2], "seed"))
    for nsqd in (0, 2):
        at = [planned.at for planned in plan if planned.nsqd == nsqd]
        assert len(at) == pytest.approx(300, rel=0.05) and at[0] >= 0 and at[-1] < 60
        gaps = [b - a for a, b in itertools.pairwise(at)]
        assert 0.1 <= min(gaps) < 0.12 and 0.28 < max(gaps) <= 0.3


def test_names_that_do_not_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, told in (
        (["--row", "tree"], "no row is called tree; there are drain, three"),
        (["--peers", "ours,gonsq"], "no peer is called gonsq; there are"),
        (["--peers", "before"], "the peer before needs --package"),
        (["--package", str(tmp_path)], "holds no gnsqsync/__init__.py"),
    ):
        with pytest.raises(SystemExit):
            command.arguments(words)
        assert told in capsys.readouterr().err


def test_rows_and_peers_that_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "gnsqsync").mkdir()
    (tmp_path / "gnsqsync" / "__init__.py").touch()
    chosen = command.arguments(["--row", "three,idle", "--row=four", f"--package={tmp_path}"])
    assert [row.name for row in chosen.rows] == ["three", "idle", "four"]
    assert chosen.peers == ["before", *peers.DEFAULT]
    assert len({row.name for row in rows.ROWS}) == len(command.arguments([]).rows)
    # A topic is named after its row and its peer, and nsqd takes 64 characters of few kinds.
    assert all(row.name.replace("-", "").isalnum() for row in rows.ROWS)
