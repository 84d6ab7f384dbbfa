"""The commands of the integrations: consume, publish, and show nsqd's figures.

Knows no framework and no command line: options are arguments, lines go to a function or file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TextIO

from gnsqsync.errors import ClosedError, ConfigError, NSQError, PublishError
from gnsqsync.options import https_options
from gnsqsync.process.hard_limit import HardLimit
from gnsqsync.process.log_output import heard
from gnsqsync.process.process_limits import ProcessLimits
from gnsqsync.process.reload import reloaded_place, run_reloading
from gnsqsync.process.supervisor import Ending, Place, run_readers, supervise
from gnsqsync.reader import Reader
from gnsqsync.reader.group import advise_once
from gnsqsync.stats import ReaderStats, counted
from gnsqsync.writer import Writer

if TYPE_CHECKING:
    from gnsqsync.cluster.totals import ChannelTotal, TopicTotal

__all__ = [
    "bodies_of",
    "failure_of",
    "listing",
    "publish_all",
    "run_consumers",
    "shown",
    "told_stuck",
    "topics_of",
]

# Upper bound of messages in an MPUB.
_BATCH = 200

# Number of checks, a second apart, after which a Reader without a connection gets a line.
_PATIENT_LOOKS = 5


def run_consumers(
    named: Sequence[tuple[str, Reader]],
    *,
    say: Callable[[str], object],
    complain: Callable[[str], object],
    processes: int,
    reload: bool,
    stop_timeout: float,
    hard_limit: HardLimit,
    limits: ProcessLimits,
    around: Callable[[int], AbstractContextManager[object]],
    before_fork: Callable[[], object] | None = None,
    at_end: Callable[[], object] | None = None,
    report: Callable[[list[ReaderStats], Ending], object] | None = None,
) -> int:
    """Run Readers until a signal comes. Return the exit code by the rules of ``supervise``.

    ``named``: the Readers with their names, not started. Each process starts its own copies.
    ``say`` and ``complain`` take lines for people. ``around`` is called in each process with its
    number, and entered while the Readers run; its ConfigError ends the command. ``hard_limit``
    watches the same Readers in each process. ``limits`` hold for each process: a process that
    reaches one is replaced, or ends if it is the only one. ``at_end`` is called in each process
    after its Readers, ``report`` with their figures and the Ending. ``reload``: run in a child,
    which is replaced when a Python file changes.
    """

    def run(place: Place) -> int:
        try:
            with around(place.number), hard_limit.watching(supervised=processes > 1):
                return _consume(named, place, say, complain, limits, stop_timeout, report)
        except ConfigError as error:
            complain(str(error))
            return 1
        finally:
            if at_end is not None:
                at_end()

    place = reloaded_place()
    # The program's modules are imported by now, and have set up logging.
    with heard("gnsqsync.reader"):
        if reload and place is None:
            return run_reloading(say, stop_timeout=stop_timeout)
        # The advice is given once, and not in each process.
        advise_once(reader for _, reader in named)
        return supervise(
            run, processes, stop_timeout=stop_timeout, place=place, before_fork=before_fork
        )


def _consume(
    named: Sequence[tuple[str, Reader]],
    place: Place,
    say: Callable[[str], object],
    complain: Callable[[str], object],
    limits: ProcessLimits,
    stop_timeout: float,
    report: Callable[[list[ReaderStats], Ending], object] | None,
) -> int:
    """Run the Readers of one process to their end, with their lines. Return its exit code."""
    readers = [reader for _, reader in named]
    started = _Started(named, say)
    try:
        limits.check_start()
        watch = limits.watch(readers)

        def worn() -> bool:
            started.look()
            reason = watch.reason()
            if reason is not None:
                say(f"stopping, as {reason}")
            return reason is not None

        ending = run_readers(readers, stop_timeout, place, started.look, worn)
    except NSQError as error:
        complain(f"ended by itself: {error}")
        return 1
    # The Reader may have ended before the second check.
    started.look()
    for name, reader in named:
        stats = reader.stats()
        say(
            f"{name}: {stats.finished} finished, {stats.requeued} requeued,"
            f" {stats.gave_up} given up"
        )
    say(str(ending))
    if report is not None:
        report([reader.stats() for reader in readers], ending)
    return ending.exit_code


class _Started:
    """The lines for Readers that have begun to consume, one for each Reader once connected."""

    def __init__(self, named: Sequence[tuple[str, Reader]], say: Callable[[str], object]) -> None:
        self._waiting = dict(named)
        self._say = say
        self._looks = 0

    def look(self) -> None:
        """Print the Readers that have connected since the last call, and once the missing ones."""
        self._looks += 1
        for name, reader in list(self._waiting.items()):
            stats = reader.stats()
            where = f"{stats.topic}/{stats.channel}"
            if stats.connections or stats.received:
                del self._waiting[name]
                self._say(f"{name} consumes {where}")
            elif self._looks == _PATIENT_LOOKS:
                self._say(f"{name} is not connected to an nsqd of {where} yet")


def listing(rows: Sequence[tuple[str, ...]], *, numbers: bool = False) -> Iterator[str]:
    """Yield aligned lines; the first row has the headings.

    ``numbers``: True if all columns except the first have numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = str.rjust if numbers else str.ljust
    for first, *rest in rows:
        cells = [aligned(cell, width) for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def _lines_of(file: TextIO | None) -> list[bytes]:
    """Return the lines of standard input without line ends, and without empty lines.

    ConfigError if ``file`` is None: standard input was closed before the program began.
    """
    if file is None:
        raise ConfigError("standard input is closed: give the messages as arguments")
    lines = (line.rstrip(b"\r\n") for line in file.buffer)
    return [line for line in lines if line]


def bodies_of(typed: Iterable[str], file: TextIO | None) -> list[bytes | str]:
    """Return the arguments as the bytes that were typed, or without any the lines of ``file``."""
    return [*map(os.fsencode, typed)] or [*_lines_of(file)]


def failure_of(error: Exception, accepted: int, topic: str) -> str:
    """Return why ``publish_all`` ended, and the number of messages nsqd had accepted by then.

    The number is needed for any error, because a second run must not publish them again.
    """
    if accepted or isinstance(error, PublishError):
        return f"{accepted} published to {topic}, then: {error}"
    return str(error)


def publish_all(
    writer: Writer,
    topic: str,
    bodies: Sequence[bytes | str],
    *,
    defer: float | None = None,
    timeout: float | None = None,
) -> Iterator[int]:
    """Publish. Yield the number of further messages that nsqd has accepted.

    This number is also yielded before PublishError and ClosedError.
    """
    if defer is not None:
        for body in bodies:
            writer.publish(topic, body, defer=defer, timeout=timeout)
            yield 1
        return
    for start in range(0, len(bodies), _BATCH):
        batch = bodies[start : start + _BATCH]
        try:
            writer.publish_many(topic, batch, timeout=timeout)
        except (PublishError, ClosedError) as error:
            yield error.acknowledged
            raise
        yield len(batch)


# -- nsqd's figures ------------------------------------------------------------------------------


def topics_of(
    topic: str | None,
    *,
    nsqd_http: Sequence[str] = (),
    lookupd_http: Sequence[str] = (),
    nsqd_tcp: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[dict[str, TopicTotal], list[str]]:
    """Return depths, clients and their RDY by topic, summed over nsqds, and the failures.

    The nsqds are those of ``nsqd_http``, or those that ``lookupd_http`` list, or the ports after
    the ports of ``nsqd_tcp``. ``options``: connection options, whose TLS files serve for https.
    """
    # The imports are here, so that consumers and publishers do not load requests.
    from gnsqsync.cluster.servers import Servers, next_ports
    from gnsqsync.cluster.totals import totals

    try:
        fixed = nsqd_http or (() if lookupd_http else next_ports(nsqd_tcp))
        cluster = Servers(fixed, () if nsqd_http else lookupd_http, **https_options(options or {}))
    except ConfigError as error:
        return {}, [str(error)]
    with closing(cluster) as servers:
        found = servers.find()
        asked = servers.ask(found.nsqds, lambda nsqd: nsqd.stats(topic))
    failed = {**found.lookups.failures, **found.bad, **asked.failures}
    failures = [f"{address}: {error}" for address, error in failed.items()]
    topics = totals(asked.answers.values())
    if not topics and not failures:
        if not found.nsqds:
            failures.append(f"no nsqd is registered at {', '.join(lookupd_http)}")
        elif topic is not None:
            failures.append(f"no such topic {topic!r} on {counted(len(found.nsqds), 'nsqd')}")
    return topics, failures


def shown(topics: dict[str, TopicTotal], failures: list[str], *, as_json: bool) -> Iterator[str]:
    """Yield the result of ``topics_of()`` as lines for people, or as one JSON object."""
    if as_json:
        rows = {
            name: {
                "depth": topic.depth,
                "messages": topic.messages,
                "channels": {channel: _numbers(one) for channel, one in topic.channels.items()},
            }
            for name, topic in topics.items()
        }
        yield json.dumps({"topics": rows, "failures": failures})
        return
    table: list[tuple[str, ...]] = [
        ("topic/channel", "depth", "in flight", "deferred", "messages", "clients", "RDY")
    ]
    stuck = []
    for name, topic in topics.items():
        table.append((name, str(topic.depth), "", "", str(topic.messages), "", ""))
        for channel, one in topic.channels.items():
            table.append((f"{name}/{channel}", *map(str, _numbers(one).values())))
            if one.is_idle:
                stuck.append(told_stuck(name, channel, one.depth))
    yield from listing(table, numbers=True)
    yield from stuck


def _numbers(one: ChannelTotal) -> dict[str, int]:
    names = ("depth", "in_flight", "deferred", "messages", "clients", "ready")
    return {name: getattr(one, name) for name in names}


def told_stuck(topic: str, channel: str, depth: int) -> str:
    """Return the line on a stuck channel of which all consumers have sent RDY 0."""
    return (
        f"{topic}/{channel}: {counted(depth, 'message')} wait, and no consumer takes any"
        " (RDY 0): in backoff, or paused"
    )
