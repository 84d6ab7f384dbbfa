"""The costs of reading: tasks note them and write them into their last entry; the driver adds up.

Knows names and numbers only; must not know the log, nsqd or Spark.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["Costs", "RunCounts", "costs_of_process"]

# Costs of a process: seconds of waiting for messages, of writing the log, and of FIN with the end
# of the connection; bytes written to the log.
# Beside these a task tells exact counts of its own partition: "received" (rows in the log),
# "redelivered" (rows with attempts above 1), "deduplicated" (messages that were dropped because the
# log had them), and "seconds" (until its last entry was made).
COSTS = ("receive_seconds", "log_seconds", "fin_seconds", "log_bytes")

Tally = Mapping[str, float]


class Costs:
    """Costs of reading in this process that are in no log entry yet.

    A task still writes and sends FIN after it has made its last entry. A later task of the same
    process writes these costs into its own entry. Methods may be called on any thread, because a
    task reads several partitions at a time.
    """

    def __init__(self) -> None:
        # Costs by name that no entry has yet. Guarded by _lock.
        self._untold = dict.fromkeys(COSTS, 0.0)
        self._lock = threading.Lock()

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._untold[name] += amount

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def take(self) -> dict[str, float]:
        """Return all costs that no entry has, for an entry that is about to be made; start at 0."""
        with self._lock:
            taken, self._untold = self._untold, dict.fromkeys(COSTS, 0.0)
        return {name: round(amount, 6) for name, amount in taken.items()}

    def put_back(self, costs: Tally) -> None:
        """Add the costs of ``take`` again, because their entry was not made."""
        for name, amount in costs.items():
            self.add(name, amount)


@functools.cache
def costs_of_process() -> Costs:
    """Return the Costs that all tasks of this process share."""
    return Costs()


class RunCounts:
    """The sums over all batches of a query since it started."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._batches = 0
        self._longest = 0.0

    def add(self, tallies: Iterable[Tally]) -> None:
        """Add the tallies of the tasks of one batch."""
        found = list(tallies)
        for tally in found:
            for name, amount in tally.items():
                self._sums[name] += amount
        self._longest += max((tally.get("seconds", 0.0) for tally in found), default=0.0)
        self._batches += 1

    def shown(self) -> dict[str, Any]:
        """Return the sums in the form of a query's progress.

        ``longest_task`` sums the longest task of each batch. The other seconds sum all tasks.
        """
        sums = self._sums
        return {
            "batches": self._batches,
            **{name: int(sums[name]) for name in ("received", "redelivered", "deduplicated")},
            "log_bytes": int(sums["log_bytes"]),
            "seconds": {
                **{part: round(sums[f"{part}_seconds"], 3) for part in ("receive", "log", "fin")},
                "longest_task": round(self._longest, 3),
            },
        }
