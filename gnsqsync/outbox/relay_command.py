"""The common part of the commands that run a relay. Knows signals and text. Knows no framework."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from gnsqsync.outbox.outbox_rows import Lag
from gnsqsync.outbox.relay import Relay
from gnsqsync.process.log_output import heard
from gnsqsync.process.supervisor import StopSignals

__all__ = ["lag_text", "run_relay"]


def lag_text(found: Lag, *, as_json: bool) -> str:
    """Return the text that ``--lag`` prints."""
    if not as_json:
        return "\n".join([str(found), *found.problems])
    # Monitors rely on the other names. ``problems`` is printed only if there are any.
    return json.dumps({k: v for k, v in asdict(found).items() if k != "problems" or v})


def run_relay(
    relay: Relay, lag: Callable[[], Lag], *, interval: float, once: bool, say: Callable[[str], None]
) -> str | None:
    """Run the relay until a signal comes, or with ``once`` until no row is due.

    ``say`` takes a line for people. With ``once`` return a text with the rows and problems that are
    left, if any. Return None otherwise, and after a signal.
    """
    try:
        with heard("gnsqsync.outbox"), StopSignals(lambda timeout: relay.stop(), 0.0):
            relay.run(interval=interval, until_empty=once)
    finally:
        say(f"{relay.published} published")
    if once and not relay.is_stopped:
        left = lag()
        problems = relay._broken()
        if left.waiting or left.failed:
            problems = [f"{left.waiting} still wait, {left.failed} have failed", *problems]
        if problems:
            return "; ".join(problems)
    return None
