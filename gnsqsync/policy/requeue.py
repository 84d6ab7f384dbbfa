"""Delays after which nsqd delivers a failed message again. Pure arithmetic.

The delay grows with the attempts up to a limit, and chance adds up to a tenth.

Surprise: the chance is computed from the message's id and attempt. The same delivery always gets
the same delay, because a log line tells it, too.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

__all__ = ["JITTER", "requeue_delay", "spread"]

# Largest part of a delay that chance may add.
JITTER: Final = 0.1


def requeue_delay(id: bytes, attempts: int, each: float, most: float) -> float:
    """Return the seconds until redelivery: ``attempts`` times ``each``, at most ``most``."""
    return spread(id, attempts, min(attempts * each, most))


def spread(id: bytes, attempts: int, seconds: float) -> float:
    """Add up to a tenth by chance, so that messages that failed together come back one by one.

    The same delivery always gets the same result, because a log line tells the delay, too.
    """
    chance: float = crc32(b"%b %d" % (id, attempts)) / 2**32
    return seconds * (1.0 + JITTER * chance)
