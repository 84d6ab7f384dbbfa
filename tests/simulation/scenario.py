"""A cluster for one scenario: code that a test would run on real servers, on virtual time.

The functions of ``scenarios.py`` are called with a ``World``, on threads and on greenlets. They
sleep as long as they like: an hour takes a millisecond.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any

from gnsqsync import Reader, Writer
from gnsqsync.embedded.options import NsqdOptions
from tests.simulation import environment
from tests.simulation.journal import Journal, Lines, take_log
from tests.simulation.lookupd import SimLookupd
from tests.simulation.network import Link, Network
from tests.simulation.nsqd import SimNsqd
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler

__all__ = ["World", "run_all"]

_MOST_SECONDS = 36_000.0


class World:
    """One process ("client"), the servers that are asked for, and their clocks.

    ``kind``: threads or greenlets.
    """

    def __init__(self, name: str, kind: str) -> None:
        self.kind = kind
        self.scheduler = Scheduler(f"{name} {kind}", preempts=kind == "threads")
        self.network = Network(self.scheduler, random.Random(f"{name} {kind}"))
        self.network.usual = Link()
        environment.enter(self.scheduler, self.network, f"{name} {kind}")
        self.journal = Journal(lambda: self.scheduler.now)
        take_log(self.journal)
        self.lookupds: list[SimLookupd] = []
        self.nsqds: list[SimNsqd] = []
        # What is stopped or closed at the end.
        self._readers: list[Reader] = []
        self._writers: list[Writer] = []

    @property
    def now(self) -> float:
        """Seconds."""
        return self.scheduler.now

    @property
    def runtime(self) -> SimRuntime:
        return SimRuntime(self.scheduler, self.network, "client")

    def sleep(self, seconds: float) -> None:
        """Of the task that calls it: of the scenario, or of a handler."""
        self.scheduler.park("its time", self.scheduler.now + seconds)

    def eventually(self, is_so: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until it is so; AssertionError when that takes longer."""
        until = self.now + seconds
        while not is_so():
            assert self.now < until, f"not within {seconds:g} s"
            self.sleep(0.01)

    def nsqd(self, **options: Any) -> SimNsqd:
        """A new one, which runs. ``options`` are those of NsqdOptions."""
        number = len(self.nsqds)
        nsqd = SimNsqd(
            f"n{number}",
            4150,
            self.scheduler,
            self.network,
            random.Random(number),
            NsqdOptions(**options),
            Lines(self.journal),
            self.lookupds,
        )
        nsqd.start()
        self.nsqds.append(nsqd)
        return nsqd

    def reader(
        self, handler: Callable[..., object] | None, *nsqds: SimNsqd, **options: Any
    ) -> Reader:
        """Of topic t and channel c. It consumes."""
        addresses = [nsqd.address for nsqd in nsqds]
        reader = Reader(
            "t", "c", handler, nsqd_tcp_addresses=addresses, runtime=self.runtime, **options
        )
        reader.start(block=False)
        self._readers.append(reader)
        return reader

    def writer(self, *nsqds: SimNsqd, **options: Any) -> Writer:
        writer = Writer([nsqd.address for nsqd in nsqds], runtime=self.runtime, **options)
        self._writers.append(writer)
        return writer

    def rdy(self) -> list[int]:
        """What nsqds know: RDY of the consumers of t/c, one after the other."""
        levels = []
        for nsqd in self.nsqds:
            for client in nsqd.clients if nsqd.is_up else ():
                if client.session.channel is not None:
                    levels.append(client.session.ready_count)
        return levels

    def carry_out(self, scenario: Callable[[World], None]) -> str:
        """ "" when it holds, else what was wrong."""
        found: list[str] = []

        def body() -> None:
            try:
                scenario(self)
            except BaseException:
                found.append(traceback.format_exc())
            try:
                for reader in self._readers:
                    reader.stop(1.0)
                    reader.join()
                for writer in self._writers:
                    writer.close()
            except BaseException:
                found.append(traceback.format_exc())

        task = self.scheduler.spawn("scenario", body, owner="user")
        self.scheduler.run(self.now + _MOST_SECONDS)
        if not task.ended:
            found.append(f"it waits for {task.waits_for}")
        left = [task.name for task in self.scheduler.tasks.values()]
        if left and not found:
            found.append(f"left behind: {', '.join(left)}")
        if found:
            found.append(self.journal.lines.getvalue()[-6000:])
        return "\n".join(found)


def run_all() -> int:
    """Each scenario on threads and on greenlets, in a process of its own; JSON on stdout.

    By "name kind": what was wrong, "" when nothing was.
    """
    from tests.simulation import scenarios

    gc.freeze()
    outcomes = {}
    for name, scenario in vars(scenarios).items():
        if not (isinstance(scenario, FunctionType) and name.startswith("scenario_")):
            continue
        for kind in ("threads", "greenlets"):
            reading, writing = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if not child:
                text = World(name, kind).carry_out(scenario)
                with os.fdopen(writing, "w") as file:
                    file.write(text or "ok")
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as file:
                outcome = file.read()
            os.waitpid(child, 0)
            outcomes[f"{name} {kind}"] = "" if outcome == "ok" else outcome or "the process ended"
    json.dump(outcomes, sys.stdout)
    return 1 if any(outcomes.values()) else 0
