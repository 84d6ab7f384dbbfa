"""Warnings at the start about options of Readers that make messages wait or get lost.

Knows the options. Must not know a connection or a message.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from gnsqsync.middleware import fails_after
from gnsqsync.reader.once import handles_once
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.stats import counted

__all__ = ["advise"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


def advise(setups: Sequence[ReaderSetup]) -> None:
    """Log warnings about the options of these Readers. Equal warnings make one line."""
    by_limits: defaultdict[tuple[int, float], list[ReaderSetup]] = defaultdict(list)
    for setup in setups:
        _advise_alone(setup)
        flow = setup.flow
        if flow.max_attempts and not flow.gives_up:
            by_limits[flow.max_attempts, flow.max_requeue_delay].append(setup)
    for (attempts, delay), same in by_limits.items():
        log.warning(
            "%s: a message that fails on attempt %d (max_attempts) or later is not finished: it"
            " waits in nsqd and comes again every %g s; set dead_letter_topic or on_giving_up",
            ", ".join(setup.name for setup in same),
            attempts,
            delay,
            extra=same[0].log_fields if len(same) == 1 else None,
        )


def _advise_alone(setup: ReaderSetup) -> None:
    flow = setup.flow
    in_flight = flow.initial_max_in_flight
    if in_flight == 1 or 0 < in_flight < flow.concurrency:
        log.log(
            logging.WARNING if in_flight < flow.concurrency else logging.INFO,
            "%s: max_in_flight is %d for %s; raise it when messages are small and many",
            setup.name,
            in_flight,
            counted(flow.concurrency, "worker"),
            extra=setup.log_fields,
        )
    names = fails_after(setup.middleware) if handles_once(setup.handler) else ""
    if names:
        log.warning(
            "%s: if the middleware %s fails after handler %s has returned, its own work is"
            " lost: the message counts as handled; set fails_after_handler = False in a"
            " middleware that cannot fail there",
            setup.name,
            names,
            setup.handler_name,
            extra=setup.log_fields,
        )
