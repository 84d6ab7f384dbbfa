"""One history: a plan is carried out, and every promise of the library is watched meanwhile."""

from __future__ import annotations

import gc
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gnsqsync.embedded.options import NsqdOptions
from tests.simulation import environment
from tests.simulation.disk import Disk
from tests.simulation.group import GroupActor
from tests.simulation.journal import Journal, Lines, take_log
from tests.simulation.lookupd import SimLookupd
from tests.simulation.network import Link, Network
from tests.simulation.nsqd import SimNsqd
from tests.simulation.picture import Sample
from tests.simulation.plan import Plan, ReaderPlan
from tests.simulation.reader import ReaderActor
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Hung, Scheduler, SimTask
from tests.simulation.troubles import Troubles
from tests.simulation.watch import Watch
from tests.simulation.writer import WriterActor

__all__ = ["History", "Result"]

# How long nothing may be handled when all is well again, though something waits; and how long the
# history goes on at most while something is.
_REST_SECONDS = 400.0
_LONGEST_REST = 3600.0
_END_SECONDS = 120.0


class Result(NamedTuple):
    """``log``: the history as text. ``seconds`` are simulated ones."""

    name: str
    violations: list[str]
    log: str
    seconds: float
    turns: int
    published: int
    handled: int
    # Where one task was interrupted and which one went on where: pairs of places.
    pairs: frozenset[tuple[int, int]] = frozenset()
    # For a picture.
    samples: tuple[Sample, ...] = ()
    marks: tuple[tuple[float, str, str], ...] = ()


class History:
    """Made and run once, in a process of its own."""

    def __init__(self, plan: Plan, stacks_at: float | None = None) -> None:
        self.plan = plan
        self.rng = random.Random(f"history {plan.chance}")
        self.scheduler = Scheduler(
            plan.chance, preempts=plan.preempts, gap=plan.gap, turn_seconds=plan.turn_seconds
        )
        self.network = Network(self.scheduler, random.Random(f"network {plan.chance}"))
        self.network.usual = Link(**plan.link)
        environment.enter(self.scheduler, self.network, plan.chance)
        self.journal = Journal(lambda: self.scheduler.now)
        self.lookupds = [self._lookupd(index) for index in range(plan.lookupds)]
        self.nsqds = [self._nsqd(index) for index in range(len(plan.nsqds))]
        self.readers: list[ReaderActor] = []
        self.groups: list[GroupActor] = []
        self.writers: list[WriterActor] = []
        # The tasks of users that are in a call of the library.
        self.in_call: dict[SimTask, None] = {}
        # Healed: handlers fail no more, and work quickly.
        self.is_over = False
        self.troubles = Troubles(self)
        # Of a fork.
        self.is_child = False
        take_log(self.journal)
        self.watch = Watch(self)
        if stacks_at is not None:
            self.scheduler.at(stacks_at, self.tell_tasks)

    def _lookupd(self, index: int) -> SimLookupd:
        return SimLookupd(f"l{index}", self.scheduler, self.network, Lines(self.journal))

    def _nsqd(self, index: int) -> SimNsqd:
        plan = self.plan.nsqds[index]
        nsqd = SimNsqd(
            f"n{index}",
            4150,
            self.scheduler,
            self.network,
            random.Random(f"nsqd {index} {self.plan.chance}"),
            NsqdOptions(**plan.options),
            Lines(self.journal),
            self.lookupds,
        )
        if plan.has_disk:
            nsqd.disk = Disk(self.rng)
        nsqd.rate, nsqd.wall_offset, nsqd.work = plan.rate, plan.wall_offset, plan.work
        return nsqd

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> Result:
        try:
            self._run()
        except Hung as error:
            self.journal.violated(f"hung: {error}")
        except Exception:
            self.journal.violated(f"the simulation failed: {traceback.format_exc()}")
        return Result(
            self.plan.name,
            self.journal.violations,
            self.journal.lines.getvalue(),
            self.scheduler.now - 1000.0,
            self.scheduler.turns,
            len(self.journal.publishes),
            sum(self.journal.handled.values()),
            frozenset(self.scheduler.pairs),
            tuple(self.watch.samples),
            tuple(self._marks()),
        )

    def _marks(self) -> Iterator[tuple[float, str, str]]:
        for fault in self.plan.faults:
            yield 1000.0 + fault.when, "fault", f"{fault.kind} {fault.target}"
        for published in self.journal.publishes.values():
            if published.ended is not None:
                yield published.ended, "publish", published.outcome
        for text in self.journal.violations:
            at, _, what = text.partition(" ")
            yield float(at), "violation", what

    def _run(self) -> None:
        plan, scheduler = self.plan, self.scheduler
        start = scheduler.now
        for lookupd in self.lookupds:
            lookupd.start()
        for nsqd in self.nsqds:
            nsqd.start()
        for index, writer in enumerate(plan.writers):
            self.writers.append(WriterActor(self, index, writer))
        for index, reader in enumerate(plan.readers):
            if reader.form == "topics":
                self.groups.append(GroupActor(self, f"topics {index}", reader, []))
            else:
                self.readers.append(ReaderActor(self, index, reader))
        members = [reader for reader in self.readers if reader.group is not None]
        if members:
            self.groups.append(GroupActor(self, "group", members[0].plan, members))
        for fault in plan.faults:
            scheduler.at(start + fault.when, lambda fault=fault: self.troubles.strike(fault))
        self._collect_garbage()
        scheduler.run(start + plan.seconds)
        self._heal()
        self._rest()
        self._end()

    def _collect_garbage(self) -> None:
        if self.plan.collects:
            gc.collect()
            self.scheduler.after(self.rng.uniform(0.5, 20.0), self._collect_garbage)

    def _heal(self) -> None:
        """All servers run, all links work, all handlers are quick; nobody publishes any more."""
        self.journal.note("-- healed")
        self.is_over = True
        self.network.usual = Link()
        for one in [*self.nsqds, *self.lookupds]:
            for source, target in (("client", one.name), (one.name, "client")):
                self.network.heal(source, target)
        for lookupd in self.lookupds:
            lookupd.drips = lookupd.lies = None
            lookupd.start()
        for nsqd in self.nsqds:
            if nsqd.disk is not None:
                nsqd.disk.fails, nsqd.disk.room = 0.0, None
            if not nsqd.is_up:
                nsqd.start()
        for writer in self.writers:
            writer.is_over = True

    def _rest(self) -> None:
        """Until nothing waits any more that a living Reader should have."""
        began = moved = self.scheduler.now
        handled = 0
        while self.scheduler.now < moved + _REST_SECONDS and not self.journal.violations:
            if sum(self.journal.handled.values()) > handled:
                handled, moved = sum(self.journal.handled.values()), self.scheduler.now
            if self.scheduler.now > began + _LONGEST_REST:
                return
            left = [text for reader in self.readers for text in reader.left()]
            left += [f"{w.name} has threads at work" for w in self.writers if w.alive]
            if not left:
                return
            self.scheduler.run(self.scheduler.now + 5.0)
        if not self.journal.violations:
            for text in left:
                self.journal.violated(f"nothing moves after {_REST_SECONDS:g} s: {text}")
            self.tell_tasks()

    def _end(self) -> None:
        """Everything is stopped, and nothing is left."""
        self.journal.note("-- ends")
        if self.plan.ends_badly:
            self.troubles.at_the_end()
        for group in self.groups:
            group.stop_asked = True
        for reader in self.readers:
            reader.stop_asked = True
        for writer in self.writers:
            writer.close_asked = True
        self.scheduler.run(self.scheduler.now + _END_SECONDS)
        for task in self.scheduler.tasks.values():
            self.journal.violated(f"{task.name} is left, and waits for {task.waits_for or '?'}")
        for end in self.network.open:
            if end.host == "client" and not self.troubles.may_leave_connection:
                self.journal.violated(
                    f"a connection to {end.peer.address} is left open, since {end.began_at:.3f}"
                )
        self.watch.settle_accounts()

    def tell_tasks(self) -> None:
        for task in self.scheduler.tasks.values():
            self.journal.note(f"   {task.name} waits for {task.waits_for or 'its turn'}")
            if task.greenlet.gr_frame is not None:
                for line in traceback.format_stack(task.greenlet.gr_frame)[-8:]:
                    self.journal.note("      " + line.strip().replace("\n", " | "))

    # -- for the actors --------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        self.scheduler.park("its time", self.scheduler.now + max(0.0, seconds))

    def runtime(self, owner: str) -> SimRuntime:
        return SimRuntime(self.scheduler, self.network, "client", owner)

    def look_for_leftovers(self, owner: str) -> None:
        """After its end nothing of a Reader or Writer is left."""

        def look() -> None:
            for task in self.scheduler.tasks.values():
                if task.owner == owner:
                    self.journal.violated(f"{owner} has ended, and {task.name} is left")
            for end in self.network.open:
                if end.owner == owner and not self.troubles.may_leave_connection:
                    text = f"{owner} has ended, and a connection to {end.peer.address} is left"
                    self.journal.violated(text)

        self.scheduler.after(0.05, look)

    @contextmanager
    def call(self) -> Iterator[None]:
        """In it the task is in a call of the library, where an exception may hit it."""
        task = self.scheduler.current
        assert task is not None
        self.in_call[task] = None
        try:
            yield
        finally:
            del self.in_call[task]

    def user(self, name: str, call: Callable[[], object]) -> SimTask:
        if self.is_child:
            # The users are in the parent.
            return self.scheduler.spawn(name, lambda: None, owner="user")
        return self.scheduler.spawn(name, call, owner="user")

    @property
    def is_calm(self) -> bool:
        """Whether nothing ever goes wrong in this history."""
        link = self.network.usual
        return not self.plan.faults and not link.loss and link.window >= 16384

    @property
    def answers_in_time(self) -> bool:
        """Whether all has arrived 0.1 s after an RDY was sent: the Reader counts on it."""
        link = self.network.usual
        work = max(nsqd.work for nsqd in self.nsqds)
        quick = 4 * (link.latency + link.jitter + work) < 0.08
        whole = link.window >= 65536 and link.segment > 1000 and not link.loss
        return (
            quick
            and whole
            and self.plan.turn_seconds < 1e-4
            and not any(f.kind.startswith(("cut", "slow")) for f in self.plan.faults)
        )

    def has_timed_out(self, plan: ReaderPlan) -> bool:
        """Whether an nsqd has sent a message anew that the Reader counts still."""
        topics = [nsqd.broker.topics.get(plan.topic) for nsqd in self.nsqds]
        channels = [topic.channels.get(plan.channel) for topic in topics if topic is not None]
        return any(channel.timeout_count for channel in channels if channel is not None)

    def addresses(self) -> list[str]:
        return [nsqd.address for nsqd in self.nsqds]

    def urls(self) -> list[str]:
        return [lookupd.url for lookupd in self.lookupds]
