"""The rows of the table: what is measured, and with how many messages a first guess is made.

Knows nothing of clients. A new row is a new entry here; a new ``kind`` needs a function in each
runner that can do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What one topic may hold: --mem-queue-size is a million, and 200-byte bodies fill memory too.
MOST_MESSAGES = 500_000
MOST_BYTES = 400_000_000

WARMUP_CALLS = 320  # 20 for each of 16 callers
WARMUP_SECONDS = 0.5  # of a row with a rate
LATENCY_SECONDS = 2.0
# A row with a rate takes its time, and its many messages are many samples already.
LATENCY_ROUNDS = 2


@dataclass(frozen=True)
class Row:
    """One workload. ``probe`` messages are run first to learn how many fill the asked time.

    ``rate``: messages a second that a process of its own publishes, for the rows of latency.
    ``latency``: that option of our Reader. ``handler_seconds``: what our handler takes; ``warm``:
    how many messages come before the meter starts, when the usual number takes too long.
    ``workers``: handlers at a time, where the client has such a thing. ``transport``: "", "snappy",
    "deflate" or "tls". ``collect``: Python's garbage collector runs. ``layouts``: where it is
    measured when nothing is said. ``quick``: in the quick form. ``goal``: the most client CPU, as
    a multiple of the floor's in the same run, that is aimed at; ``goal_gevent`` the same on
    gevent, beside the floor on gevent.
    """

    name: str
    title: str
    kind: str
    probe: int = 0
    callers: int = 1
    batch: int = 1
    max_in_flight: int = 0
    workers: int = 1
    body_size: int = 200
    transport: str = ""
    rate: float = 0.0
    latency: str = "adaptive"
    handler_seconds: float = 0.0
    warm: int | None = None
    collect: bool = True
    layouts: tuple[str, ...] = ("pinned",)
    quick: bool = True
    goal: float | None = None
    goal_gevent: float | None = None

    @property
    def consumes(self) -> bool:
        return self.kind in ("consume", "latency")

    @property
    def fed(self) -> bool:
        """The channel is filled before the client starts."""
        return self.kind == "consume"

    @property
    def has_probe(self) -> bool:
        """Whether a first run says how many messages fill the asked time."""
        return self.kind != "latency"

    def rounds(self, asked: int) -> int:
        """How often it is measured when ``asked`` times are wanted."""
        return min(asked, LATENCY_ROUNDS) if self.kind == "latency" else asked

    @property
    def warmup(self) -> int:
        """Messages before the meter starts: connected, every buffer and cache in use."""
        if self.warm is not None:
            return self.warm
        if self.kind == "latency":
            return max(1, round(self.rate * WARMUP_SECONDS))
        if self.consumes:
            return 1000 + 2 * self.max_in_flight
        return WARMUP_CALLS * self.batch

    @property
    def surplus(self) -> int:
        """Messages beyond the last measured one, so that the stream never runs dry.

        At the end of a topic nsqd holds a partly filled buffer back until its flush timer, up to
        250 ms (docs/protocol/flow#output-buffer); measuring that would say nothing about the
        client.
        """
        return 2 * self.max_in_flight + 2000 if self.fed else 0

    def whole(self, messages: float) -> int:
        """``messages`` within the limits, as a multiple of what all callers do in one go."""
        unit = self.callers * self.batch
        limit = min(MOST_MESSAGES, MOST_BYTES // self.body_size) - self.warmup - self.surplus
        return max(1, round(min(messages, limit) / unit)) * unit


BOTH, FREE = ("pinned", "free"), ("free",)

# The goals are those of the design: its microseconds over the floor's, measured on one machine.
ROWS = (
    Row("publish-1", "publish one by one, one thread", "publish", 500,
        layouts=BOTH, goal=6 / 3.9, goal_gevent=10 / 7.2),
    Row("publish-16", "publish one by one, 16 threads or greenlets on one Writer", "publish", 1600,
        callers=16, layouts=BOTH, goal=6.2 / 4.8, goal_gevent=4.1 / 2.9),
    Row("publish-many", "publish_many, 100 a call", "publish_many", 20_000,
        batch=100, layouts=BOTH, goal=0.23 / 0.16),
    Row("consume-2500-workers", "consume, max_in_flight 2500, 4 workers", "consume", 5000,
        max_in_flight=2500, workers=4, layouts=BOTH, goal=1.2 / 0.67),
    Row("consume-2500", "consume, max_in_flight 2500", "consume", 5000,
        max_in_flight=2500, layouts=BOTH, goal=1.2 / 0.67, goal_gevent=1.2 / 0.66),
    Row("consume-200", "consume, max_in_flight 200", "consume", 5000,
        max_in_flight=200, goal=1.3 / 0.62),
    Row("consume-1", "consume, max_in_flight 1", "consume", 500,
        max_in_flight=1, goal=1.6),
    Row("consume-1-workers", "consume, max_in_flight 1, 4 workers", "consume", 500,
        max_in_flight=1, workers=4, quick=False),
    Row("consume-snappy", "consume, Snappy", "consume", 5000,
        max_in_flight=2500, transport="snappy", quick=False, goal=1.4),
    Row("consume-deflate", "consume, DEFLATE 6", "consume", 5000,
        max_in_flight=2500, transport="deflate", quick=False, goal=3.2 / 2.4),
    Row("consume-tls", "consume, TLS", "consume", 5000,
        max_in_flight=2500, transport="tls", quick=False, goal=1.4 / 0.77),
    Row("consume-1kB", "consume, bodies of 1 000 bytes", "consume", 5000,
        max_in_flight=2500, body_size=1000, quick=False),
    Row("consume-10kB", "consume, bodies of 10 000 bytes", "consume", 2000,
        max_in_flight=2500, body_size=10_000, quick=False, goal=1.4),
    Row("memory-no-gc", "consume, max_in_flight 2500, Python's gc off", "consume", 5000,
        max_in_flight=2500, collect=False, quick=False),
    Row("latency-200", "publish to handler, 200 msg/s, max_in_flight 200", "latency",
        max_in_flight=200, rate=200, layouts=FREE),
    Row("latency-2500", "publish to handler, 200 msg/s, settings of consume-2500-workers",
        "latency", max_in_flight=2500, workers=4, rate=200, layouts=FREE, quick=False),
)  # fmt: skip


def select(names: Sequence[str], quick: bool = False) -> tuple[Row, ...]:
    """The rows with these names or beginnings of names; all, or all quick ones, without names.

    Raises ValueError for a name that fits no row.
    """
    for name in names:
        if not any(row.name.startswith(name) for row in ROWS):
            raise ValueError(
                f"no row is called {name}; there are {', '.join(r.name for r in ROWS)}"
            )
    if not names:
        return tuple(row for row in ROWS if row.quick or not quick)
    return tuple(row for row in ROWS if row.name.startswith(tuple(names)))
