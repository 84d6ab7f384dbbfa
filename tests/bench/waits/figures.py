"""Figures from the calls of handlers, their verdicts, and tables of them. Measures nothing."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.bench.report import percentile

# Seconds without a call that count as a pause of the backoff.
PAUSE = 0.25
# Events beyond the limit that are chance where the limit is the older package's.
FEW = 5
OURS = ("ours", "ours-gevent", "before")
MET, MISSED, OPEN = "met", "missed", ""


class Call(NamedTuple):
    """A call of a handler; times are seconds."""

    at: float
    topic: str
    nsqd: int
    number: int
    published: float
    kind: str
    attempts: int
    ok: bool


class Sent(NamedTuple):
    """A published message."""

    nsqd: int
    number: int
    published: float
    kind: str


class Figure(NamedTuple):
    """A measured value. ``more``: the run ended first, so the value is a lower bound."""

    value: float
    more: bool = False


@dataclass(frozen=True)
class Goal:
    """Name and unit of a figure, and its limit. ``least``: the limit is a lower one."""

    name: str
    unit: str = "s"
    limit: float | None = None
    least: bool = False
    # The limit is what the older package beside it had, and this part more.
    as_before: float | None = None

    def shown(self) -> str:
        """Return the goal as the table shows it."""
        if self.as_before is not None:
            return "as before"
        if self.limit is None:
            return "-"
        return f"{'≥' if self.least else '≤'} {number(self.limit)}"


Figures = Mapping[str, Figure]
# By row, then by peer.
Results = Mapping[str, Mapping[str, Figures]]


def calls_of(text: str) -> list[Call]:
    """Parse lines of the log of a consumer."""
    found = []
    for line in text.splitlines():
        at, topic, nsqd, number_, published, kind, attempts, ok = line.split()
        found.append(
            Call(
                int(at) / 1e9,
                topic,
                int(nsqd),
                int(number_),
                int(published) / 1e9,
                kind,
                int(attempts),
                ok == "1",
            )
        )
    return found


def waits(sent: Iterable[Sent], calls: Iterable[Call], end: float) -> list[Figure]:
    """Return the wait of each message until it was handled, or until ``end`` if it never was."""
    handled: dict[int, float] = {}
    for call in calls:
        if call.ok:
            handled[call.number] = min(call.at, handled.get(call.number, math.inf))
    return [
        Figure(handled[m.number] - m.published)
        if handled.get(m.number, math.inf) <= end
        else Figure(end - m.published, more=True)
        for m in sent
    ]


def part(found: Sequence[Figure], share: float) -> Figure:
    """Return the percentile; a lower bound if the messages that still wait may change it."""
    handled = [wait.value for wait in found if not wait.more]
    waiting = [math.inf] * (len(found) - len(handled))
    value = percentile([*handled, *waiting], share)
    if value < math.inf:
        return Figure(value)
    # Each of them has waited until the end of the run, at least.
    return Figure(percentile([wait.value for wait in found], share), more=True)


def spread(found: Sequence[Figure]) -> dict[str, Figure]:
    """Return median, 99 % and the handled share of waits."""
    done = sum(not wait.more for wait in found)
    return {
        "median": part(found, 0.5),
        "99 %": part(found, 0.99),
        "handled": Figure(100 * done / len(found)),
    }


def evenness(calls: Iterable[Call], nsqds: int) -> Figure:
    """Return the largest deviation of an nsqd's messages from the mean, in percent of the mean."""
    by_nsqd = Counter(call.nsqd for call in calls)
    mean = sum(by_nsqd.values()) / nsqds
    if not mean:
        return Figure(100.0)
    return Figure(100 * max(abs(by_nsqd[n] - mean) for n in range(nsqds)) / mean)


def longest_turn(calls: Iterable[Call], nsqds: int, begin: float, end: float) -> Figure:
    """Return the longest time in which an nsqd that had messages delivered none."""
    by_nsqd: dict[int, list[float]] = {n: [begin] for n in range(nsqds)}
    for call in sorted(calls):
        if begin <= call.at <= end:
            by_nsqd[call.nsqd].append(call.at)
    return Figure(max(b - a for at in by_nsqd.values() for a, b in itertools.pairwise([*at, end])))


def groups(moments: Sequence[float], pause: float = PAUSE) -> list[list[float]]:
    """Return the moments, grouped: a new group begins after a pause."""
    found: list[list[float]] = []
    for moment in sorted(moments):
        if not found or moment - found[-1][-1] > pause:
            found.append([])
        found[-1].append(moment)
    return found


def outage(calls: Sequence[Call], begin: float, end: float, rate: int) -> dict[str, Figure]:
    """Return what a consumer did in an outage, and when its full rate was back.

    The full rate is back at the first moment that ends a second with ``rate`` handled messages.
    """
    inside = groups([call.at for call in calls if begin <= call.at < end])
    pauses = [b[0] - a[-1] for a, b in itertools.pairwise(inside)]
    if inside:
        # The outage ends within the last pause.
        pauses.append(end - inside[-1][-1])
    later = sorted(call.at for call in calls if call.at >= end and call.ok)
    last = max((call.at for call in calls), default=end)
    windows = zip(later, later[rate - 1 :], strict=False)
    back = next((b for a, b in windows if b - a <= 1.0), None)
    return {
        "calls before the first pause": Figure(len(inside[0]) if inside else 0),
        "calls between two pauses": Figure(max(map(len, inside[1:]), default=0)),
        "longest pause": Figure(max(pauses, default=0.0)),
        "full rate after": Figure(last - end, True) if back is None else Figure(back - end),
    }


def longest_stop(calls: Iterable[Call], begin: float, end: float) -> Figure:
    """Return the longest time without a handled message."""
    moments = [begin, *sorted(c.at for c in calls if c.ok and begin <= c.at <= end), end]
    return Figure(max(b - a for a, b in itertools.pairwise(moments)))


def verdict(goal: Goal, figure: Figure | None, before: Figure | None = None) -> str:
    """Return if a figure met its goal; nothing for a figure without a goal."""
    limit = goal.limit
    if goal.as_before is not None:
        limit = None if before is None else before.value * (1 + goal.as_before) + FEW
    if figure is None or limit is None:
        return OPEN
    if goal.least:
        return MET if figure.value >= limit else MISSED
    return MET if figure.value <= limit and not figure.more else MISSED


def number(value: float) -> str:
    """Return a value with three digits, without trailing zeros."""
    if value >= 100:
        return f"{value:,.0f}"
    digits = 1 if value >= 10 else 2 if value >= 1 else 3
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def shown(figure: Figure | None) -> str:
    """Return a figure as the table shows it; a dash for what a client does not have."""
    if figure is None:
        return "-"
    return f"> {number(figure.value)}" if figure.more else number(figure.value)


def lines(
    rows: Iterable[tuple[str, str, Sequence[Goal]]],
    results: Results,
    peers: Sequence[str],
) -> list[list[str]]:
    """Return the table with its head: a line for each figure of each row that was measured.

    ``rows``: name, title and goals of each. The result is that of the first client of ours.
    """
    judged = next((name for name in OURS if name in peers), "")
    found = [["Row", "Figure", *peers, "goal", "result"]]
    for name, title, goals in rows:
        measured = results.get(name)
        if not measured:
            continue
        for goal in goals:
            cells = {peer: figures.get(goal.name) for peer, figures in measured.items()}
            before = None if judged == "before" else cells.get("before")
            result = verdict(goal, cells.get(judged), before)
            unit = "" if goal.unit == "" else f", {goal.unit}"
            found.append(
                [title, goal.name + unit]
                + [shown(cells.get(peer)) for peer in peers]
                + [goal.shown(), result]
            )
            title = ""
    return found


def text_table(table: Sequence[Sequence[str]]) -> str:
    """Return the table for a terminal; each row's title is a line of its own."""
    widths = [max(len(line[i]) for line in table) for i in range(1, len(table[0]))]
    out = []
    for line in table:
        if line[0] and line is not table[0]:
            out.append(line[0])
        cells = [line[1].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(line[2:], widths[1:], strict=True)]
        out.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(out) + "\n"


def csv_table(table: Sequence[Sequence[str]]) -> str:
    """Return the table as the page on performance includes it."""
    out = io.StringIO()
    # A hyphen alone would be shown as the point of a list.
    csv.writer(out, lineterminator="\n").writerows(
        [["–" if cell == "-" else cell for cell in line] for line in table]
    )
    return out.getvalue()
