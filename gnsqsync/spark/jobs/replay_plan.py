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
# A part is packed from about so many buckets, so it differs from its size by about one bucket.
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
    """Messages with start <= publish time < end, in microseconds since 1970."""

    start: int
    end: int
    messages: int


@dataclass(frozen=True)
class Plan:
    """What is replayed, and its parts: part i is what was published in [bounds[i], bounds[i + 1]).

    A part is a slice of time and not a list of files, so that a compaction of the archive between
    two runs changes nothing. ``counts`` are messages as they were counted.
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
        """ConfigError when a newer version of gnsqsync wrote it."""
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ConfigError(
                f"the replay was begun by another version of gnsqsync (plan {found['version']},"
                f" known is {_VERSION}); finish it with that version, or set another state folder"
            )
        return cls(found["what"], tuple(found["bounds"]), tuple(found["counts"]))

    def check_same(self, what: Mapping[str, Any], state: str) -> None:
        """ConfigError when ``what`` is another replay than the one that was begun."""
        for key, text in _NAMES.items():
            if self.what[key] != what[key]:
                raise ConfigError(
                    f"{state} holds a replay with {text} {self.what[key]!r}, now it is"
                    f" {what[key]!r}; set the same to go on with it, or another state folder"
                )


def first_shift(low: int, high: int, count: int, part_messages: int) -> int:
    """How wide, as a power of two, the first buckets are for ``count`` messages in low..high."""
    buckets = _BUCKETS_PER_PART * -(-count // part_messages)
    return ((high - low) // buckets).bit_length()


def pack(what: Mapping[str, Any], buckets: Iterable[Bucket], part_messages: int) -> Plan:
    """Neighbouring buckets together, up to ``part_messages`` in a part unless one has more."""
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
    """Parts that one job of Spark publishes, in order; some between them may be done already."""

    parts: tuple[int, ...]
    messages: int


class Waves:
    """Hands out the parts that are left, in order."""

    def __init__(self, plan: Plan, done: Collection[int]) -> None:
        left = [part for part in range(len(plan.counts)) if part not in done]
        self._left = left
        self._sums = [0, *accumulate(plan.counts[part] for part in left)]
        self._at = 0

    def take(self, messages: float, parts: int) -> Wave | None:
        """At least one part, then as many as hold ``messages`` together, ``parts`` at most."""
        if self._at == len(self._left):
            return None
        limit = self._sums[self._at] + messages
        end = min(bisect_right(self._sums, limit) - 1, self._at + parts)
        end = max(end, self._at + 1)
        begin, self._at = self._at, end
        return Wave(tuple(self._left[begin:end]), self._sums[end] - self._sums[begin])
