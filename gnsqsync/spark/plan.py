"""The plan of an epoch: how many messages each task reads from which nsqd, kept in its end offset.

Pure: depths and limits in, plain dicts out. Spark logs an offset before any task runs, so the plan
is the same at every replay, even if nsqlookupd has changed its answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Offset",
    "Part",
    "Source",
    "Targets",
    "Trust",
    "budgets_of",
    "first_offset",
    "group",
    "next_offset",
    "parts_of",
    "scale",
    "share_out",
]

Offset = dict[str, Any]

# Spark takes 30 to 60 ms of CPU for each task of a Python source, and a part takes 3 to 5 ms
# (docs/spark/sizing): so many parts each have a task, and so many messages are worth one.
MOST_ALONE = 16
MESSAGES_A_TASK = 50_000
# A part costs as much as so many messages, however many it has.
MESSAGES_A_PART = 500

# Seconds; for how long at most a source that gives nothing is not asked.
LONGEST_REST = 30.0


class Source(NamedTuple):
    """A topic on an nsqd (``host:port`` of its TCP protocol)."""

    nsqd: str
    topic: str


class Part(NamedTuple):
    """One task: take up to ``budget`` messages of a topic from an nsqd."""

    nsqd: str
    topic: str
    budget: int


def first_offset(stream: str, channel: str) -> Offset:
    """Where a query begins: epoch 0, which has no messages."""
    return {"stream": stream, "epoch": 0, "channel": channel, "parts": {}}


def next_offset(start: Offset, parts: list[Part]) -> Offset:
    """The end of the epoch after ``start``, with its plan. Keys are short: Spark logs it."""
    planned = {
        str(number): {"a": part.nsqd, "t": part.topic, "n": part.budget}
        for number, part in enumerate(parts)
    }
    return {**start, "epoch": start["epoch"] + 1, "parts": planned}


def parts_of(offset: Offset) -> list[Part]:
    """The parts of the epoch that ends at ``offset``, in the order of their numbers."""
    planned = offset["parts"]
    return [
        Part(entry["a"], entry["t"], entry["n"])
        for entry in (planned[str(number)] for number in range(len(planned)))
    ]


def budgets_of(parts: list[Part]) -> dict[Source, int]:
    """How many messages the parts take of each source."""
    budgets: dict[Source, int] = {}
    for part in parts:
        source = Source(part.nsqd, part.topic)
        budgets[source] = budgets.get(source, 0) + part.budget
    return budgets


def scale(depths: Mapping[Source, int], limit: int | None, turn: int = 0) -> dict[Source, int]:
    """How many messages to take of each source so that all together are ``limit`` at most.

    In proportion to the depths, but at least one of each, so that a small backlog does not wait
    for the end of a large one. With fewer messages than sources ``turn`` says which begins.
    """
    waiting = {source: depth for source, depth in depths.items() if depth > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    if limit < len(waiting):
        order = sorted(waiting)
        return {order[(turn + step) % len(order)]: 1 for step in range(limit)}
    rest, left = limit - len(waiting), total - len(waiting)
    taken = {source: 1 + rest * (depth - 1) // left for source, depth in waiting.items()}
    # The remainders of the divisions: less than one of each, so no source gets above its depth.
    missing = limit - sum(taken.values())
    for source in sorted(waiting, key=lambda s: waiting[s] - taken[s], reverse=True)[:missing]:
        taken[source] += 1
    return taken


def share_out(budgets: Mapping[Source, int], min_partitions: int = 1) -> list[Part]:
    """One part for each source, or more of the larger ones until there are ``min_partitions``.

    A part is a connection of its own. No part is empty, so fewer messages than partitions make
    fewer parts.
    """
    total = sum(budgets.values())
    counts = {
        source: min(max(1, min_partitions * budget // total), budget)
        for source, budget in budgets.items()
    }
    while sum(counts.values()) < min(min_partitions, total):
        largest = max(counts, key=lambda source: budgets[source] / counts[source])
        counts[largest] += 1
    return [
        Part(source.nsqd, source.topic, size)
        for source in sorted(budgets)
        for size in _even(budgets[source], counts[source])
    ]


def _even(total: int, count: int) -> list[int]:
    size, larger = divmod(total, count)
    return [size + 1] * larger + [size] * (count - larger)


def group(parts: Sequence[Part], min_partitions: int = 1) -> list[list[int]]:
    """Which parts, by number, one task reads, so that each task is worth its cost.

    Up to MOST_ALONE parts each have a task. More of them share tasks of about MESSAGES_A_TASK
    messages, in at least MOST_ALONE and ``min_partitions`` tasks.
    """
    total = sum(part.budget for part in parts)
    least = max(MOST_ALONE, min_partitions, -(-total // MESSAGES_A_TASK))
    tasks: list[list[int]] = [[] for _ in range(min(least, len(parts)))]
    # The largest first, each to the task with the least to do.
    loads = [(0, number) for number in range(len(tasks))]
    for part in sorted(range(len(parts)), key=lambda n: parts[n].budget, reverse=True):
        load, task = heapq.heappop(loads)
        tasks[task].append(part)
        heapq.heappush(loads, (load + parts[part].budget + MESSAGES_A_PART, task))
    return tasks


class Targets:
    """What a query with Trigger.AvailableNow has still to take: the depths when it began.

    Every epoch lowers it by its budgets, whatever its tasks find, so the query ends.
    """

    def __init__(self, depths: Mapping[Source, int]) -> None:
        self._left = dict(depths)

    def bound(self, depths: Mapping[Source, int | None]) -> dict[Source, int]:
        """``depths`` cut to what is left; a depth that cannot be seen now (None) counts as it."""
        found = {}
        for source, left in self._left.items():
            depth = depths.get(source)
            found[source] = left if depth is None else min(left, depth)
        return found

    def take(self, parts: list[Part]) -> None:
        for part in parts:
            self._left[Source(part.nsqd, part.topic)] -= part.budget

    def drop(self, source: Source) -> None:
        """It cannot be reached: its messages are left for the next run."""
        self._left.pop(source, None)


class Trust:
    """Which sources give messages to epochs; a source that gives none is asked less often.

    Executors may not reach an nsqd that the driver reaches; then empty batches would follow each
    other for ever. ``done`` counts the messages that a channel has finished: if it does not change
    over an epoch, nothing was read. Times are seconds of one clock.
    """

    def __init__(self) -> None:
        self._at_plan: dict[Source, int] = {}
        self._failures: dict[Source, int] = {}
        self._rest_until: dict[Source, float] = {}

    def planned(self, parts: list[Part], done: Mapping[Source, int]) -> None:
        """An epoch begins."""
        sources = {Source(part.nsqd, part.topic) for part in parts}
        self._at_plan = {source: done[source] for source in sources if source in done}

    def judge(self, done: Mapping[Source, int], now: float) -> list[Source]:
        """The epoch is over: the sources of which it got nothing."""
        failed = sorted(s for s, before in self._at_plan.items() if done.get(s) == before)
        for source in self._at_plan.keys() - set(failed):
            self._failures.pop(source, None)
        for source in failed:
            failures = self._failures.get(source, 0)
            self._failures[source] = failures + 1
            self._rest_until[source] = now + min(2.0**failures, LONGEST_REST)
        self._at_plan = {}
        return failed

    def allows(self, source: Source, now: float) -> bool:
        """Whether the next epoch may ask this one."""
        return now >= self._rest_until.get(source, now)
