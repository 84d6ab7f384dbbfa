"""The plan of an epoch: the number of messages that each task reads from each nsqd.

Pure: depths and limits in, plain dicts out. The end offset of an epoch contains its plan. Spark
logs an offset before any task runs, so every replay has the same plan, even if nsqlookupd has
changed its answer.
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
# (docs/spark/sizing).
# Largest number of parts that each have a task of their own.
MOST_ALONE = 16
# Messages that are worth the cost of a task.
MESSAGES_A_TASK = 50_000
# Fixed cost of a part, as a number of messages.
MESSAGES_A_PART = 500

# Seconds: the longest time for which a source that gives nothing is not asked.
LONGEST_REST = 30.0


class Source(NamedTuple):
    """A topic on an nsqd (``host:port`` of its TCP protocol)."""

    nsqd: str
    topic: str


class Part(NamedTuple):
    """An order to take up to ``budget`` messages of a topic from an nsqd."""

    nsqd: str
    topic: str
    budget: int


def first_offset(stream: str, channel: str) -> Offset:
    """Return the start of a query: the end of epoch 0, which has no messages."""
    return {"stream": stream, "epoch": 0, "channel": channel, "parts": {}}


def next_offset(start: Offset, parts: list[Part]) -> Offset:
    """Return the end of the epoch after ``start``, with its plan.

    Keys are short, because Spark logs every offset.
    """
    planned = {
        str(number): {"a": part.nsqd, "t": part.topic, "n": part.budget}
        for number, part in enumerate(parts)
    }
    return {**start, "epoch": start["epoch"] + 1, "parts": planned}


def parts_of(offset: Offset) -> list[Part]:
    """Return the parts of the epoch that ends at ``offset``, in the order of their numbers."""
    planned = offset["parts"]
    return [
        Part(entry["a"], entry["t"], entry["n"])
        for entry in (planned[str(number)] for number in range(len(planned)))
    ]


def budgets_of(parts: list[Part]) -> dict[Source, int]:
    """Return the number of messages that the parts take from each source."""
    budgets: dict[Source, int] = {}
    for part in parts:
        source = Source(part.nsqd, part.topic)
        budgets[source] = budgets.get(source, 0) + part.budget
    return budgets


def scale(depths: Mapping[Source, int], limit: int | None, turn: int = 0) -> dict[Source, int]:
    """Return the number of messages to take from each source, at most ``limit`` in all.

    The numbers are in proportion to the depths, with at least one for each source: a small backlog
    then does not wait for the end of a large one. If ``limit`` is below the number of sources,
    ``turn`` selects the source that begins.
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
    # Each division left less than one message, so adding one brings no source above its depth.
    missing = limit - sum(taken.values())
    for source in sorted(waiting, key=lambda s: waiting[s] - taken[s], reverse=True)[:missing]:
        taken[source] += 1
    return taken


def share_out(budgets: Mapping[Source, int], min_partitions: int = 1) -> list[Part]:
    """Return a part for each source, and more for large sources until ``min_partitions`` exist.

    Each part is a connection of its own. No part is empty, so there are fewer parts than
    ``min_partitions`` if there are fewer messages.
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
    """Return the numbers of the parts that each task reads, so that each task is worth its cost.

    Up to MOST_ALONE parts have a task each. More parts share tasks of about MESSAGES_A_TASK
    messages, in at least MOST_ALONE and ``min_partitions`` tasks.
    """
    total = sum(part.budget for part in parts)
    least = max(MOST_ALONE, min_partitions, -(-total // MESSAGES_A_TASK))
    tasks: list[list[int]] = [[] for _ in range(min(least, len(parts)))]
    # The largest part goes first, and each goes to the task with the least to do.
    loads = [(0, number) for number in range(len(tasks))]
    for part in sorted(range(len(parts)), key=lambda n: parts[n].budget, reverse=True):
        load, task = heapq.heappop(loads)
        tasks[task].append(part)
        heapq.heappush(loads, (load + parts[part].budget + MESSAGES_A_PART, task))
    return tasks


class Targets:
    """The messages that a query with Trigger.AvailableNow has still to take, by source.

    The numbers begin as the depths at the start. Every epoch lowers them by its budgets, even if
    its tasks find fewer messages, so the query ends.
    """

    def __init__(self, depths: Mapping[Source, int]) -> None:
        self._left = dict(depths)

    def bound(self, depths: Mapping[Source, int | None]) -> dict[Source, int]:
        """Return ``depths``, each at most the number that is left; None counts as that number."""
        found = {}
        for source, left in self._left.items():
            depth = depths.get(source)
            found[source] = left if depth is None else min(left, depth)
        return found

    def take(self, parts: list[Part]) -> None:
        for part in parts:
            self._left[Source(part.nsqd, part.topic)] -= part.budget

    def drop(self, source: Source) -> None:
        """Leave the messages of a source that cannot be reached to the next run."""
        self._left.pop(source, None)


class Trust:
    """A record of the sources that gave no message to an epoch. They are asked less often.

    Executors may fail to reach an nsqd that the driver reaches. Without this record, empty batches
    would follow each other for ever. ``done`` counts the messages that a channel has finished: if
    it does not change over an epoch, nothing was read. Times are seconds of one clock.
    """

    def __init__(self) -> None:
        # ``done`` of each source at the begin of the running epoch.
        self._at_plan: dict[Source, int] = {}
        # Number of epochs in a row without a message, by source.
        self._failures: dict[Source, int] = {}
        # Time before which a source is not asked.
        self._rest_until: dict[Source, float] = {}

    def planned(self, parts: list[Part], done: Mapping[Source, int]) -> None:
        """Note the begin of an epoch with these parts."""
        sources = {Source(part.nsqd, part.topic) for part in parts}
        self._at_plan = {source: done[source] for source in sources if source in done}

    def judge(self, done: Mapping[Source, int], now: float) -> list[Source]:
        """Note the end of the epoch, and return the sources that gave it nothing."""
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
        """Return True if the next epoch may ask this source."""
        return now >= self._rest_until.get(source, now)
