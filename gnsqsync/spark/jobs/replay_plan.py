"""The parts of a replay: slices of publish time with a count each, fixed before anything is sent.

Knows arithmetic and JSON. Knows nothing of Spark, files or nsqd.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from gnsqsync.errors import ConfigError

__all__ = ["Bucket", "Plan", "Wave", "Waves", "first_shift", "pack"]

_VERSION = 1
# Number of buckets of an average part. The size of a part is wrong by about one bucket.
_BUCKETS_PER_PART = 20
_NAMES = {
    "archive": "archive",
    "topics": "source topics",
    "start": "start",
    "end": "end",
    "filter": "filter",
    "topic": "topic",
}


class Bucket(NamedTuple):
    """Number of messages with start <= publish time < end, in microseconds since 1970."""

    start: int
    end: int
    messages: int


@dataclass(frozen=True)
class Plan:
    """The arguments of a replay and its parts. Part i was published in [bounds[i], bounds[i + 1]).

    A part is a slice of time and not a list of files, so a compaction of the archive between two
    runs changes nothing. ``what``: the arguments. ``counts``: number of messages of each part.
    """

    what: Mapping[str, Any]
    bounds: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def messages(self) -> int:
        return sum(self.counts)

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Return the plan from its file. Raises ConfigError if another version wrote it."""
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ConfigError(
                f"the replay was begun by another version of gnsqsync (plan {found['version']},"
                f" known is {_VERSION}); finish it with that version, or set another state folder"
            )
        return cls(found["what"], tuple(found["bounds"]), tuple(found["counts"]))

    def check_same(self, what: Mapping[str, Any], state: str) -> None:
        """Raise ConfigError if ``what`` differs from the arguments with which the replay began.

        ``state``: the state folder, for the error.
        """
        for key, text in _NAMES.items():
            if self.what[key] != what[key]:
                raise ConfigError(
                    f"{state} holds a replay with {text} {self.what[key]!r}, now it is"
                    f" {what[key]!r}; set the same to go on with it, or another state folder"
                )


def first_shift(low: int, high: int, count: int, part_messages: int) -> int:
    """Return the width of the first buckets, as an exponent of 2 of microseconds.

    ``count``: number of messages with a publish time from ``low`` to ``high``.
    """
    buckets = _BUCKETS_PER_PART * -(-count // part_messages)
    return ((high - low) // buckets).bit_length()


def pack(what: Mapping[str, Any], buckets: Iterable[Bucket], part_messages: int) -> Plan:
    """Join neighbouring buckets to parts of up to ``part_messages``, or of one larger bucket."""
    bounds: list[int] = []
    counts: list[int] = []
    end = 0
    for bucket in sorted(buckets):
        if counts and counts[-1] + bucket.messages <= part_messages:
            counts[-1] += bucket.messages
        else:
            bounds.append(bucket.start)
            counts.append(bucket.messages)
        end = bucket.end
    return Plan(what, (*bounds, end) if bounds else (), tuple(counts))


class Wave(NamedTuple):
    """Parts that one job of Spark publishes, in order. Parts between them may be done already."""

    parts: tuple[int, ...]
    messages: int


class Waves:
    """The parts that are left, handed out in order."""

    def __init__(self, plan: Plan, done: Collection[int]) -> None:
        left = [part for part in range(len(plan.counts)) if part not in done]
        self._left = left
        self._sums = [0, *accumulate(plan.counts[part] for part in left)]
        self._at = 0

    def take(self, messages: float, parts: int) -> Wave | None:
        """Return the next parts with at most ``messages`` in all, or None if no part is left.

        A wave has at least one part, and at most ``parts``.
        """
        if self._at == len(self._left):
            return None
        limit = self._sums[self._at] + messages
        end = min(bisect_right(self._sums, limit) - 1, self._at + parts)
        end = max(end, self._at + 1)
        begin, self._at = self._at, end
        return Wave(tuple(self._left[begin:end]), self._sums[end] - self._sums[begin])
