"""What reading costs: noted by the tasks, told in the last entry of each, summed up by the driver.

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

# Beside these a task tells exact counts of its own partition: rows in the log ("received"), of
# these with attempts above 1 ("redelivered"), messages that were dropped, as the log had them
# ("deduplicated"), and the seconds until its last entry was made ("seconds").
# Costs are of a process: seconds in waiting for messages, in writing the log, and in FIN with the
# end of the connection; bytes written to the log.
COSTS = ("receive_seconds", "log_seconds", "fin_seconds", "log_bytes")

Tally = Mapping[str, float]


class Costs:
    """What reading has cost this process and no log tells yet.

    A task still writes and sends FIN after its last entry is made, so a later task of the same
    process tells that part. From any thread: a task reads several partitions at a time.
    """

    def __init__(self) -> None:
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
        """All that is untold, for an entry that is about to be made."""
        with self._lock:
            taken, self._untold = self._untold, dict.fromkeys(COSTS, 0.0)
        return {name: round(amount, 6) for name, amount in taken.items()}

    def put_back(self, costs: Tally) -> None:
        """The entry was not made."""
        for name, amount in costs.items():
            self.add(name, amount)


@functools.cache
def costs_of_process() -> Costs:
    """Those of all tasks that this process runs."""
    return Costs()


class RunCounts:
    """The sums over all batches of a query since it started."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._batches = 0
        self._longest = 0.0

    def add(self, tallies: Iterable[Tally]) -> None:
        """The tasks of one batch."""
        found = list(tallies)
        for tally in found:
            for name, amount in tally.items():
                self._sums[name] += amount
        self._longest += max((tally.get("seconds", 0.0) for tally in found), default=0.0)
        self._batches += 1

    def shown(self) -> dict[str, Any]:
        """As in a query's progress. Seconds are of all tasks together, but for longest_task."""
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
