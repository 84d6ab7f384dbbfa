"""Delays after which nsqd delivers a failed message again. Pure arithmetic."""

from __future__ import annotations

from typing import Final
from zlib import crc32

__all__ = ["JITTER", "requeue_delay", "spread"]

# The part of a delay that is added by chance at most.
JITTER: Final = 0.1


def requeue_delay(id: bytes, attempts: int, each: float, most: float) -> float:
    """Return the seconds until a message comes again: ``attempts`` times ``each``, or ``most``."""
    return spread(id, attempts, min(attempts * each, most))


def spread(id: bytes, attempts: int, seconds: float) -> float:
    """Add up to a tenth by chance, so that a burst that failed together does not come as one.

    The chance is the same whenever the same delivery is asked about: a log line tells it, too.
    """
    chance: float = crc32(b"%b %d" % (id, attempts)) / 2**32
    return seconds * (1.0 + JITTER * chance)
