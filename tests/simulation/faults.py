"""Deliberate faults: each is put into the code alone, and histories have to show it.

``python -m tests.simulation --faults`` tells after how many histories each is seen.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.points import Change

__all__ = ["FAULTS", "DeliberateFault"]


class DeliberateFault(NamedTuple):
    """``about``: what a user would meet."""

    about: str
    changes: tuple[Change, ...]


def _fault(about: str, module: str, old: str, new: str) -> DeliberateFault:
    return DeliberateFault(about, (Change(f"gnsqsync.{module}", old, new),))


FAULTS: dict[str, DeliberateFault] = {
    # -- what the simulation has found, put back ---------------------------------------------------
    "sends for others without end": _fault(
        "a publish on a slow link returns long after its timeout",
        "connection.send_queue",
        "            if now >= until:\n                return False\n",
        "            until = max(until, now + 1.0)\n",
    ),
    "sender taken for killed": _fault(
        "a publish is in doubt because another thread sent at the same time, twice",
        "connection.send_queue",
        "            if self._lock.acquire(True, _SURE_SECONDS):",
        "            if False and self._lock.acquire(True, _SURE_SECONDS):",
    ),
    "lookup connection left": _fault(
        "a connection to nsqlookupd outlives stop()",
        "http.limits",
        "                if pool is not None:\n                    pool.close()\n",
        "                if pool is not None:\n                    pass\n",
    ),
    # -- publishing --------------------------------------------------------------------------------
    "EOF unread while the turn is lent": _fault(
        "T21: a publish goes into a connection that nsqd has ended, and is in doubt",
        "connection.send_queue",
        "        if self._peer_has_ended():\n",
        "        if False and self._peer_has_ended():\n",
    ),
    "answers in the wrong order": _fault(
        "a publish gets the answer of another one",
        "connection.publish_replies",
        "pending.popleft()",
        "pending.pop()",
    ),
}
