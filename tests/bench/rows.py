"""The rows of the table: what is measured, and with how many messages a first guess is made.

Knows nothing of clients. A new row is a new entry here; a new ``kind`` needs a function in each
runner that can do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What one topic may hold: --mem-queue-size is a million, and 200-byte bodies fill memory too.
MOST_MESSAGES = 500_000

WARMUP_CALLS = 320  # 20 for each of 16 callers


@dataclass(frozen=True)
class Row:
    """One workload. ``probe`` messages are run first to learn how many fill the asked time."""

    name: str
    title: str
    kind: str
    probe: int
    callers: int = 1
    batch: int = 1
    max_in_flight: int = 0
    body_size: int = 200

    @property
    def consumes(self) -> bool:
        return self.kind == "consume"

    @property
    def warmup(self) -> int:
        """Messages before the meter starts: connected, every buffer and cache in use."""
        if self.consumes:
            return 1000 + 2 * self.max_in_flight
        return WARMUP_CALLS * self.batch

    @property
    def surplus(self) -> int:
        """Messages beyond the last measured one, so that the stream never runs dry.

        At the end of a topic nsqd holds a partly filled buffer back until its flush timer, up to
        250 ms (nsq-reference 1.17); measuring that would say nothing about the client.
        """
        return 2 * self.max_in_flight + 2000 if self.consumes else 0

    def whole(self, messages: float) -> int:
        """``messages`` within the limits, as a multiple of what all callers do in one go."""
        unit = self.callers * self.batch
        limit = MOST_MESSAGES - self.warmup - self.surplus
        return max(1, round(min(messages, limit) / unit)) * unit


ROWS = (
    Row("publish-1", "publish one by one, one thread", "publish", 500),
    Row("publish-16", "publish, 16 threads on one Writer", "publish", 1600, callers=16),
    Row("publish-many", "publish_many, 100 a call", "publish_many", 20_000, batch=100),
    Row("consume-1", "consume, max_in_flight 1", "consume", 500, max_in_flight=1),
    Row("consume-200", "consume, max_in_flight 200", "consume", 5000, max_in_flight=200),
    Row("consume-2500", "consume, max_in_flight 2500", "consume", 5000, max_in_flight=2500),
)


def select(names: Sequence[str]) -> tuple[Row, ...]:
    """The rows with these names or beginnings of names; all when there are none.

    Raises ValueError for a name that fits no row.
    """
    for name in names:
        if not any(row.name.startswith(name) for row in ROWS):
            raise ValueError(
                f"no row is called {name}; there are {', '.join(r.name for r in ROWS)}"
            )
    return tuple(row for row in ROWS if not names or row.name.startswith(tuple(names)))
