"""Which connections of a Reader are of no more use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync.policy.latency import RdyLevel
from gnsqsync.reader.retiring import why_useless

NOW = 1000.0


def connection(share: int, adaptive: bool = True, **changes: Any) -> Any:
    """One that has had messages, the last just now, and nothing in flight."""
    level = RdyLevel(adaptive)
    level.share = share
    usual: dict[str, Any] = {
        "level": level,
        "end_was_asked": False,
        "in_flight": (),
        "is_ephemeral": False,
        "unanswerable": 0,
        "received": 9,
        "sub_delay": 0.0,
        "connected_at": 0.0,
        "last_message_at": NOW,
    }
    return SimpleNamespace(**usual | changes)


LONG_AGO = NOW - 10.0


@pytest.mark.parametrize(
    ("share", "adaptive", "changes", "useless"),
    [
        # One handler was slow: messages come, or the channel would end with the connection.
        (1, True, {"unanswerable": 1}, False),
        (1, True, {"unanswerable": 1, "last_message_at": LONG_AGO, "is_ephemeral": True}, False),
        # Nothing comes where that may be all of the RDY.
        (1, True, {"unanswerable": 1, "last_message_at": LONG_AGO}, True),
        (10, True, {"unanswerable": 1, "last_message_at": LONG_AGO}, True),
        (10, False, {"unanswerable": 4, "last_message_at": LONG_AGO}, False),
        # Half of it is gone, though messages come.
        (10, False, {"unanswerable": 5}, True),
        (10, False, {"unanswerable": 4}, False),
        (10, False, {"unanswerable": 5, "in_flight": (1,)}, False),
        (10, False, {"unanswerable": 5, "end_was_asked": True}, False),
        # Paused: there is no RDY that could be used up.
        (0, True, {"unanswerable": 9, "last_message_at": LONG_AGO}, False),
    ],
)
def test_rdy_that_refused_answers_use_up(
    share: int, adaptive: bool, changes: dict[str, Any], useless: bool
) -> None:
    assert bool(why_useless(connection(share, adaptive, **changes), NOW)) is useless
