"""Warnings at the start about options of Readers that make messages wait or get lost.

Knows the options. Must not know a connection or a message.

A start passes all Readers that start together.

Surprise: a warning belongs to options, and not to a Reader. Readers with equal options share one
line, and ``Told`` keeps a TopicGroup from repeating the line for each topic.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Sequence

from gnsqsync.middleware import fails_after
from gnsqsync.reader.once import handles_once
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.stats import counted

__all__ = ["Told", "advise"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


class Told:
    """The warnings that a group has given, whose Readers begin one after another.

    A TopicGroup may have a thousand topics with the same options.
    """

    def __init__(self) -> None:
        self._given: set[Hashable] = set()

    def is_new(self, *what: Hashable) -> bool:
        """Return True at the first call with these values."""
        before = len(self._given)
        self._given.add(what)
        return len(self._given) > before


def advise(setups: Sequence[ReaderSetup], told: Told | None = None) -> None:
    """Log warnings about the options of these Readers. Equal warnings make one line.

    ``told``: the warnings of earlier Readers of the group, which are not repeated.
    """
    by_limits: defaultdict[tuple[int, float], list[ReaderSetup]] = defaultdict(list)
    for setup in setups:
        _advise_alone(setup, told or Told())
        flow = setup.flow
        limits = flow.max_attempts, flow.max_requeue_delay
        if flow.max_attempts and not flow.gives_up and (told is None or told.is_new(*limits)):
            by_limits[limits].append(setup)
    for (attempts, delay), same in by_limits.items():
        log.warning(
            "%s: a message that fails on attempt %d (max_attempts) or later is not finished: it"
            " waits in nsqd and comes again every %g s; set dead_letter_topic or on_giving_up",
            ", ".join(setup.name for setup in same) + (" and further topics" if told else ""),
            attempts,
            delay,
            extra=same[0].log_fields if len(same) == 1 else None,
        )


def _advise_alone(setup: ReaderSetup, told: Told) -> None:
    flow = setup.flow
    in_flight = flow.initial_max_in_flight
    is_low = in_flight == 1 or 0 < in_flight < flow.concurrency
    if is_low and told.is_new("in flight", in_flight, flow.concurrency):
        log.log(
            logging.WARNING if in_flight < flow.concurrency else logging.INFO,
            "%s: max_in_flight is %d for %s; raise it when messages are small and many",
            setup.name,
            in_flight,
            counted(flow.concurrency, "worker"),
            extra=setup.log_fields,
        )
    names = fails_after(setup.middleware) if handles_once(setup.handler) else ""
    if names and told.is_new("middleware", names, setup.handler_name):
        log.warning(
            "%s: if the middleware %s fails after handler %s has returned, its own work is"
            " lost: the message counts as handled; set fails_after_handler = False in a"
            " middleware that cannot fail there",
            setup.name,
            names,
            setup.handler_name,
            extra=setup.log_fields,
        )
