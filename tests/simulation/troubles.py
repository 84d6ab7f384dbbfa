"""The faults of a plan, carried out; and what is let down by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsqsync.connection.in_flight import MOST_BEYOND
from gnsqsync.embedded.options import NsqdOptions
from tests.simulation import forking
from tests.simulation.lookupd import SimLookupd
from tests.simulation.network import Link
from tests.simulation.nsqd import FLOOD_BYTES
from tests.simulation.plan import Fault

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["Struck", "Troubles"]

# While a machine stands still nobody can keep a time (seconds).
_LONGEST_PAUSE = 3.0


class Struck(BaseException):
    """From outside: an interrupt, a time limit of the caller's, a greenlet that is killed."""


class Troubles:
    """Strikes at the servers, the network and the process of a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        # Seconds that the process, or an nsqd, stood still: they add to what it may take.
        self.stood_still = 0.0
        self._stood_still_at = -1000.0
        # Whether an nsqd has ever ignored RDY.
        self.has_flooded = False
        # Whether an exception from outside has ever hit a call of the library.
        self.has_struck = False
        self.may_leave_connection = False

    @property
    def stood_still_lately(self) -> bool:
        """Whether what nsqd and the client think of a timeout may differ."""
        return self._history.scheduler.now < self._stood_still_at + 70.0

    def strike(self, fault: Fault) -> None:
        history = self._history
        if fault.kind in ("freeze", "pause", "slow"):
            self._stood_still_at = history.scheduler.now + fault.seconds
        history.journal.note(f"-- fault: {fault.kind} {fault.target} for {fault.seconds:g} s")
        if fault.kind.startswith("lookupd"):
            self._strike_lookupd(history.lookupds[fault.target], fault)
        elif fault.kind in ("threads", "pause", "exception", "fork"):
            self._strike_process(fault)
        elif fault.kind in ("cut", "cut one way", "slow"):
            self._strike_link(fault)
        else:
            self._strike_nsqd(fault)

    def _strike_process(self, fault: Fault) -> None:
        history, scheduler = self._history, self._history.scheduler
        if fault.kind == "threads":
            until = scheduler.now + fault.seconds
            scheduler.refuses_thread = lambda name: (
                scheduler.now < until and name.startswith("nsq-") and "nsq-timer" not in name
            )
        elif fault.kind == "pause":
            scheduler.freeze(min(fault.seconds, _LONGEST_PAUSE))
            self.stood_still += min(fault.seconds, _LONGEST_PAUSE)
        elif fault.kind == "fork":
            history.user("forker", lambda: forking.fork(history))
        else:
            victims = [task for task in history.in_call if not task.ended]
            if victims:
                victim = victims[int(fault.number * len(victims))]
                history.journal.note(f"-- struck: {victim.name}, {victim.waits_for or 'at work'}")
                self.has_struck = True
                # Between two statements of a thread that has just opened a connection, and has not
                # begun to read it, nothing helps but the garbage collector.
                self.may_leave_connection |= not victim.waits_for
                # Whoever has its turn to read, or to send, is missed for so long.
                self.stood_still += 10.0
                scheduler.throw(victim, Struck("from outside"))

    def _strike_nsqd(self, fault: Fault) -> None:
        history, scheduler = self._history, self._history.scheduler
        nsqd = history.nsqds[fault.target]
        if fault.kind in ("kill", "stop", "power"):
            if nsqd.is_up:
                has_memory = fault.kind == "stop" and nsqd.disk is not None
                if not has_memory:
                    history.journal.losses.append((nsqd.name, scheduler.now, fault.kind))
                {"kill": nsqd.kill, "stop": nsqd.stop, "power": nsqd.power_off}[fault.kind]()
                scheduler.after(fault.seconds, lambda: None if nsqd.is_up else nsqd.start())
        elif fault.kind == "flood":
            self.has_flooded = True
            history.network.set_link("client", nsqd.name, Link(window=1 << 20))
            nsqd.flood(600)
            self._watch_memory(scheduler.now + 5.0)
        elif fault.kind == "freeze":
            nsqd.freeze(fault.seconds)
            self.stood_still += fault.seconds
        elif fault.kind == "full disk":
            disk = nsqd.disk
            if disk is not None:
                disk.room = 0

                def room_again() -> None:
                    disk.room = None
                    history.journal.losses.append((nsqd.name, scheduler.now, "full disk"))

                scheduler.after(fault.seconds, room_again)
        elif fault.kind == "garbage":
            nsqd.send_garbage(fault.number)
        elif fault.kind == "clock":
            nsqd.wall_offset += (fault.number - 0.5) * 7200.0
        elif fault.kind == "fewer RDY":
            if nsqd.is_up and nsqd.disk is not None:
                nsqd.stop()
                options = history.plan.nsqds[fault.target].options
                nsqd.options = NsqdOptions(
                    **{**options, "max_rdy_count": 1 + int(fault.number * 3)}
                )
                scheduler.after(fault.seconds, lambda: None if nsqd.is_up else nsqd.start())
        else:
            assert fault.kind == "reset", fault
            for end in history.network.ends_of(nsqd.name):
                end.reset()
                if end.handler is not None and hasattr(end.handler, "over"):
                    end.handler.over()

    def _strike_link(self, fault: Fault) -> None:
        history, network = self._history, self._history.network
        scheduler, nsqd = history.scheduler, history.nsqds[fault.target]
        if fault.kind == "slow":
            link = Link(**{**history.plan.link, "latency": 0.05 + fault.number, "jitter": 0.1})
            network.set_link("client", nsqd.name, link)
            usual = Link(**history.plan.link)
            scheduler.after(fault.seconds, lambda: network.set_link("client", nsqd.name, usual))
            self.stood_still += 2.5
            return
        ways = [("client", nsqd.name), (nsqd.name, "client")]
        if fault.kind == "cut one way":
            ways = ways[:1] if fault.number < 0.5 else ways[1:]
        for way in ways:
            network.cut(*way)
            scheduler.after(fault.seconds, lambda way=way: network.heal(*way))

    def _strike_lookupd(self, lookupd: SimLookupd, fault: Fault) -> None:
        scheduler = self._history.scheduler
        if fault.kind == "lookupd kill":
            lookupd.kill()
            scheduler.after(fault.seconds, lookupd.start)
            return
        if fault.kind == "lookupd drips":
            lookupd.drips = 0.3
        else:
            lookupd.lies = [
                ("200 OK", b"not json"), ("200 OK", b'{"producers": 3}'), ("500 Oops", b""),
                ("200 OK", b'{"channels":[],"producers":[]}'),
            ][int(fault.number * 4)]  # fmt: skip

        def end() -> None:
            lookupd.drips = lookupd.lies = None

        scheduler.after(fault.seconds, end)

    def _watch_memory(self, until: float) -> None:
        """While an nsqd ignores RDY, what waits in the client is bounded."""
        history = self._history
        for reader in history.readers:
            size = reader.bytes_in_memory()
            granted = reader.plan.keywords["max_in_flight"] * FLOOD_BYTES
            if size > 3 * MOST_BEYOND + granted:
                history.journal.violated(f"{reader.name} has {size:,} bytes of messages in memory")
                return
        if history.scheduler.now < until:
            history.scheduler.after(0.01, lambda: self._watch_memory(until))

    def at_the_end(self) -> None:
        """What is bad while everything is stopped: that has to end in time all the same."""
        history = self._history
        for lookupd in history.lookupds:
            lookupd.drips = 0.3
        for number, nsqd in enumerate(history.nsqds):
            if number % 2:
                nsqd.freeze(1e6)
            else:
                history.network.cut(nsqd.name, "client")
