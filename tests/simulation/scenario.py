"""A cluster for one scenario: code that a test would run on real servers, on virtual time.

The functions of ``scenarios_*.py`` are called with a ``World``, on threads and on greenlets. They
sleep as long as they like: an hour takes a millisecond.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from gnsqsync import Reader, Writer
from gnsqsync.addresses import Address
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.session import Session
from gnsqsync.runtime.base import Socket
from tests.simulation import environment
from tests.simulation.journal import Journal, Lines, take_log
from tests.simulation.lookupd import SimLookupd
from tests.simulation.network import Network
from tests.simulation.nsqd import SimNsqd
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler, SimTask
from tests.simulation.world import SimWorld

__all__ = ["SUBJECTS", "World", "run_all", "scenarios"]

# Each is a file of scenarios, ``scenarios_*.py``.
SUBJECTS = ("backoff", "dials", "reader", "writer")

# Seconds that a scenario may take, and seconds after its end in which all else ends.
_MOST_SECONDS = 36_000.0
_END_SECONDS = 120.0


class _Runtime(SimRuntime):
    """The process's runtime. ``dials`` gets the address of each dial."""

    def __init__(self, scheduler: Scheduler, network: Network, dials: list[str]) -> None:
        super().__init__(scheduler, network, "client")
        self.dials = dials

    def connect(self, address: Address, *args: Any, **options: Any) -> Socket:
        self.dials.append(str(address))
        return super().connect(address, *args, **options)


class World(SimWorld):
    """One process ("client"), the servers that are asked for, and their clocks.

    ``kind``: threads or greenlets. ``many``: long scenarios run at their full size.
    """

    longest_join = 3600.0

    def __init__(self, name: str, kind: str, many: bool = False) -> None:
        seed = f"{name} {kind}"
        scheduler = Scheduler(seed, preempts=kind == "threads")
        super().__init__(kind, scheduler, Network(scheduler, random.Random(seed)))
        self._many = many
        environment.enter(self.scheduler, self.network, seed)
        self.journal = Journal(lambda: self.scheduler.now)
        take_log(self.journal)
        self.lookupds: list[SimLookupd] = []
        self.nsqds: list[SimNsqd] = []
        # The addresses that Readers and Writers have dialled, one by one.
        self.dials: list[str] = []
        self.runtime = _Runtime(scheduler, self.network, self.dials)
        # What is stopped or closed at the end.
        self._readers: list[Reader] = []
        self._writers: list[Writer] = []

    def size(self, few: int, many: int) -> int:
        """Return ``few`` in the first ring of tests, ``many`` in the third."""
        return many if self._many else few

    def tasks(self, name: str) -> list[SimTask]:
        """Those that run, by their name."""
        return [task for task in self.scheduler.tasks.values() if task.name == name]

    def log(self) -> str:
        """Of the library, from DEBUG on, and of the servers."""
        return self.journal.lines.getvalue()

    def logged(self, level: str) -> list[str]:
        """What the library has logged at this level."""
        lines = self.log().splitlines()
        return [line.partition(": ")[2] for line in lines if f" {level} gnsqsync" in line]

    def lookupd(self) -> SimLookupd:
        """A new one, which runs. Only nsqds that are made after it know it."""
        name = f"l{len(self.lookupds)}"
        lookupd = SimLookupd(name, self.scheduler, self.network, Lines(self.journal))
        lookupd.start()
        self.lookupds.append(lookupd)
        return lookupd

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
        self,
        handler: Callable[..., object] | None,
        *nsqds: SimNsqd,
        channel: str = "c",
        **options: Any,
    ) -> Reader:
        """Of topic t. It consumes."""
        addresses = [nsqd.address for nsqd in nsqds]
        reader = Reader(
            "t", channel, handler, nsqd_tcp_addresses=addresses, runtime=self.runtime, **options
        )
        reader.start(block=False)
        self._readers.append(reader)
        return reader

    def writer(self, *nsqds: SimNsqd | str, **options: Any) -> Writer:
        """Nobody needs to listen at an address."""
        addresses = [nsqd if isinstance(nsqd, str) else nsqd.address for nsqd in nsqds]
        writer = Writer(addresses or None, runtime=self.runtime, **options)
        self._writers.append(writer)
        return writer

    def bodies(self, nsqd: SimNsqd) -> list[bytes]:
        """What waits in its topic t, which has no channel."""
        topic = nsqd.broker.topics.get("t")
        return [] if topic is None else [message.body for message in topic.queue]

    def rdy(self) -> list[int]:
        """What nsqds know: RDY of each consumer."""
        return [session.ready_count for session in self._consumers()]

    def _consumers(self) -> list[Session]:
        """In the order of the nsqds."""
        clients = [client for nsqd in self.nsqds if nsqd.is_up for client in nsqd.clients]
        return [client.session for client in clients if client.session.channel is not None]

    @contextmanager
    def watched(self, limit: int, handed_on: int = 0) -> Iterator[None]:
        """Check that the sum of max(RDY, in flight) of all consumers is not above ``limit`` inside.

        nsqds are looked at each millisecond; it is reached once at least. ``handed_on``: slots that
        another nsqd may have while the RDY 0 and the FIN that free them are still on their way.
        """
        largest = 0
        is_over = False

        def look() -> None:
            nonlocal largest
            while not is_over:
                consumers = self._consumers()
                largest = max(largest, sum(max(s.ready_count, s.in_flight) for s in consumers))
                self.sleep(0.001)

        task = self.spawn(look)
        try:
            yield
        finally:
            is_over = True
            task.join()
        assert limit <= largest <= limit + handed_on, f"the sum was {largest}"

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
        until = self.now + _MOST_SECONDS
        is_at_rest = False
        while not task.ended and self.now < until and not is_at_rest:
            next_look = self.now + 60.0
            self.scheduler.run(next_look)
            is_at_rest = self.now < next_look
        # Servers ask each other for ever: all else has ended by then.
        self.scheduler.run(self.now + _END_SECONDS)
        if not task.ended:
            found.append(f"it waits for {task.waits_for}")
        left = self.left_behind()
        if left and not found:
            found.append(f"left behind: {', '.join(left)}")
        if found:
            found.append(self.log()[-6000:])
        return "\n".join(found)


def scenarios(*subjects: str) -> dict[str, Callable[[World], None]]:
    """Return the scenarios of these files by name; without arguments, all."""
    modules = [import_module(f"tests.simulation.scenarios_{one}") for one in subjects or SUBJECTS]
    return {
        name: scenario
        for module in modules
        for name, scenario in vars(module).items()
        if name.startswith("scenario_")
    }


def run_all(subjects: Sequence[str] = (), many: bool = False) -> int:
    """Run each scenario on threads and on greenlets, in a process of its own; JSON on stdout.

    By "name kind": what was wrong, "" when nothing was.
    """
    found = scenarios(*subjects)
    gc.freeze()
    outcomes = {}
    for name, scenario in found.items():
        for kind in ("threads", "greenlets"):
            reading, writing = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if not child:
                text = World(name, kind, many).carry_out(scenario)
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
