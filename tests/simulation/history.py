"""One history: a plan is carried out, and every promise of the library is watched meanwhile."""

from __future__ import annotations

import gc
import io
import logging
import random
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from gnsqsync import Message, Observer, Reader, Requeue, Writer
from gnsqsync.connection.in_flight import MOST_BEYOND
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.queueing import QueuedMessage
from gnsqsync.embedded.topic import Topic
from gnsqsync.errors import ClosedError, NotSent, NSQError, OutcomeUnknown, PublishError, Refused
from tests.simulation import environment
from tests.simulation.disk import Disk
from tests.simulation.journal import Journal, Publish, Stored
from tests.simulation.lookupd import SimLookupd
from tests.simulation.network import End, Link, Network
from tests.simulation.nsqd import SimNsqd
from tests.simulation.picture import Sample
from tests.simulation.plan import Fault, Plan, ReaderPlan, WriterPlan
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Hung, Scheduler, SimTask

__all__ = ["History", "Result"]

# Over the library's own times: what a slow turn of the scheduler may add (seconds).
_LEEWAY = 0.25
# A FIN leaves so long after its handler at the latest.
_FIN_SECONDS = 0.1
# How long nothing may be handled when all is well again, though something waits; and how long the
# history goes on at most while something is.
_REST_SECONDS = 400.0
_LONGEST_REST = 3600.0
_END_SECONDS = 120.0
_MOST_SAMPLES = 20_000
_BODY = re.compile(rb"w\d+-\d+-\d+\.")


class Result(NamedTuple):
    """``log``: the history as text. ``seconds`` are simulated ones."""

    seed: int
    violations: list[str]
    log: str
    seconds: float
    turns: int
    published: int
    handled: int
    # For a picture.
    samples: tuple[Sample, ...] = ()
    marks: tuple[tuple[float, str, str], ...] = ()


class History:
    """Made and run once, in a process of its own."""

    def __init__(self, plan: Plan, stacks_at: float | None = None) -> None:
        self.plan = plan
        self.rng = random.Random(f"history {plan.seed}")
        self.scheduler = Scheduler(plan.seed, preempts=plan.preempts, gap=plan.gap)
        self.network = Network(self.scheduler, random.Random(f"network {plan.seed}"))
        self.network.usual = Link(**plan.link)
        self.network.on_sent = self._on_sent
        environment.enter(self.scheduler, self.network, plan.seed)
        self.journal = Journal(lambda: self.scheduler.now)
        self.lookupds = [self._lookupd(index) for index in range(plan.lookupds)]
        self.nsqds = [self._nsqd(index) for index in range(len(plan.nsqds))]
        self.readers: list[_ReaderActor] = []
        self.writers: list[_WriterActor] = []
        # Healed: handlers fail no more, and work quickly.
        self.is_over = False
        # Seconds that the process, or an nsqd, stood still: they add to what it may take.
        self.stood_still = 0.0
        self._stood_still_at = -1000.0
        # Whether an nsqd has ever ignored RDY.
        self._flooded = False
        self._log_handler = self._take_log()
        self._watch_brokers()
        self.scheduler.on_raised = self._on_raised
        if stacks_at is not None:
            self.scheduler.at(stacks_at, self._tell_tasks)
        self.samples: list[Sample] = []

    def _take_log(self) -> logging.Handler:
        handler = logging.StreamHandler(_Lines(self.journal))
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log = logging.getLogger("gnsqsync")
        log.setLevel(logging.DEBUG)
        log.addHandler(handler)
        log.propagate = False
        return handler

    def _lookupd(self, index: int) -> SimLookupd:
        return SimLookupd(f"l{index}", self.scheduler, self.network, _Lines(self.journal))

    def _nsqd(self, index: int) -> SimNsqd:
        plan = self.plan.nsqds[index]
        nsqd = SimNsqd(
            f"n{index}",
            4150,
            self.scheduler,
            self.network,
            random.Random(f"nsqd {index} {self.plan.seed}"),
            NsqdOptions(**plan.options),
            _Lines(self.journal),
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
            self.plan.seed,
            self.journal.violations,
            self.journal.lines.getvalue(),
            self.scheduler.now - 1000.0,
            self.scheduler.turns,
            len(self.journal.publishes),
            sum(self.journal.handled.values()),
            tuple(self.samples),
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
            self.writers.append(_WriterActor(self, index, writer))
        for index, reader in enumerate(plan.readers):
            self.readers.append(_ReaderActor(self, index, reader))
        for fault in plan.faults:
            scheduler.at(start + fault.when, lambda fault=fault: self._strike(fault))
        self._collect_garbage()
        scheduler.run(start + plan.seconds)
        self._heal()
        self._rest()
        self._end()

    def _collect_garbage(self) -> None:
        if self.plan.seed % 4 == 0:
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
            self._tell_tasks()

    def _end(self) -> None:
        """Everything is stopped, and nothing is left."""
        self.journal.note("-- ends")
        for reader in self.readers:
            reader.stop_asked = True
        for writer in self.writers:
            writer.close_asked = True
        self.scheduler.run(self.scheduler.now + _END_SECONDS)
        for task in self.scheduler.tasks.values():
            self.journal.violated(f"{task.name} is left, and waits for {task.waits_for or '?'}")
        for end in self.network.open:
            if end.host == "client":
                self.journal.violated(
                    f"a connection to {end.peer.address} is left open, since {end.began_at:.3f}"
                )
        self._settle_accounts()

    def _tell_tasks(self) -> None:
        for task in self.scheduler.tasks.values():
            self.journal.note(f"   {task.name} waits for {task.waits_for or 'its turn'}")
            if task.greenlet.gr_frame is not None:
                for line in traceback.format_stack(task.greenlet.gr_frame)[-8:]:
                    self.journal.note("      " + line.strip().replace("\n", " | "))

    # -- faults ----------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        scheduler, network = self.scheduler, self.network
        if fault.kind in ("freeze", "pause", "slow"):
            self._stood_still_at = scheduler.now + fault.seconds
        self.journal.note(f"-- fault: {fault.kind} {fault.target} for {fault.seconds:g} s")
        if fault.kind.startswith("lookupd"):
            self._strike_lookupd(self.lookupds[fault.target], fault)
            return
        if fault.kind == "threads":
            until = scheduler.now + fault.seconds
            scheduler.refuses_thread = lambda name: (
                scheduler.now < until and name.startswith("nsq-") and "nsq-timer" not in name
            )
            return
        nsqd = self.nsqds[fault.target]
        if fault.kind in ("kill", "stop", "power"):
            if nsqd.is_up:
                has_memory = fault.kind == "stop" and nsqd.disk is not None
                if not has_memory:
                    self.journal.losses.append((nsqd.name, scheduler.now, fault.kind))
                {"kill": nsqd.kill, "stop": nsqd.stop, "power": nsqd.power_off}[fault.kind]()
                scheduler.after(fault.seconds, lambda: None if nsqd.is_up else nsqd.start())
        elif fault.kind == "flood":
            self._flooded = True
            network.set_link("client", nsqd.name, Link(window=1 << 20))
            nsqd.flood(300)
            self._watch_memory(scheduler.now + 5.0)
        elif fault.kind == "freeze":
            nsqd.freeze(fault.seconds)
            self.stood_still += fault.seconds
        elif fault.kind == "pause":
            scheduler.freeze(min(fault.seconds, 3.0))
            self.stood_still += min(fault.seconds, 3.0)
        elif fault.kind in ("cut", "cut one way"):
            ways = [("client", nsqd.name), (nsqd.name, "client")]
            if fault.kind == "cut one way":
                ways = ways[:1] if fault.number < 0.5 else ways[1:]
            for way in ways:
                network.cut(*way)
                scheduler.after(fault.seconds, lambda way=way: network.heal(*way))
        elif fault.kind == "reset":
            for end in network.ends_of(nsqd.name):
                end.reset()
                if end.handler is not None and hasattr(end.handler, "over"):
                    end.handler.over()
        elif fault.kind == "slow":
            link = Link(**{**self.plan.link, "latency": 0.05 + fault.number, "jitter": 0.1})
            network.set_link("client", nsqd.name, link)
            usual = Link(**self.plan.link)
            scheduler.after(fault.seconds, lambda: network.set_link("client", nsqd.name, usual))
            self.stood_still += 2.5

    def _watch_memory(self, until: float) -> None:
        """While an nsqd ignores RDY, what waits in the client is bounded."""
        for reader in self.readers:
            size = reader.bytes_in_memory()
            if size > 2 * MOST_BEYOND:
                self.journal.violated(f"{reader.name} has {size:,} bytes of messages in memory")
        if self.scheduler.now < until:
            self.scheduler.after(0.01, lambda: self._watch_memory(until))

    def _strike_lookupd(self, lookupd: SimLookupd, fault: Fault) -> None:
        if fault.kind == "lookupd kill":
            lookupd.kill()
            self.scheduler.after(fault.seconds, lookupd.start)
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

        self.scheduler.after(fault.seconds, end)

    # -- what is watched -------------------------------------------------------------------------

    def _watch_brokers(self) -> None:
        journal, scheduler = self.journal, self.scheduler
        publish, put, finish = Topic.publish, Channel.put, Channel.finish

        def watched_publish(topic: Topic, bodies: Sequence[bytes], delay: float = 0.0) -> None:
            before = topic.message_count
            try:
                publish(topic, bodies, delay)
            finally:
                nsqd = topic._schedule.nsqd  # type: ignore[attr-defined]
                for body in bodies[: topic.message_count - before]:
                    self._on_stored(nsqd, topic.name, body)

        def watched_put(channel: Channel, message: QueuedMessage) -> None:
            put(channel, message)
            nsqd = channel._schedule.nsqd  # type: ignore[attr-defined]
            key = (nsqd.name, channel.topic_name, channel.name, bytes(message.body))
            journal.owed.setdefault(key, scheduler.now)

        def watched_finish(channel: Channel, id: bytes, consumer: Any) -> bytes | None:
            message = channel.in_flight.get(id)
            failed = finish(channel, id, consumer)
            fin = (channel, id, consumer)
            if failed is not None and fin in journal.finished:
                journal.violated(f"a second FIN of {id!r} on {channel.name}")
            if failed is None and message is not None and message.attempts == 1:
                # Of one that has timed out, another copy may be on its way to the same consumer.
                journal.finished.add(fin)
            if failed is None and message is not None:
                nsqd = channel._schedule.nsqd  # type: ignore[attr-defined]
                journal.owed.pop(
                    (nsqd.name, channel.topic_name, channel.name, bytes(message.body)), None
                )
                key = (channel.name, message.body)
                if not journal.handled.get(key) and not journal.gave_up.get(key):
                    journal.violated(f"FIN of {message.body[:20]!r} on {channel.name}, unhandled")
            return failed

        Topic.publish = watched_publish  # type: ignore[method-assign]
        Channel.put = watched_put  # type: ignore[method-assign]
        Channel.finish = watched_finish  # type: ignore[method-assign]

    def _on_stored(self, nsqd: SimNsqd, topic: str, body: bytes) -> None:
        body = bytes(body)
        self.journal.stored.setdefault(body, []).append(
            Stored(nsqd.name, topic, self.scheduler.now)
        )
        published = self.journal.publishes.get(body)
        if published is None:
            self.journal.violated(f"{nsqd.name} stored {body[:20]!r}, which nobody published")
        elif published.outcome == "not sent":
            self.journal.violated(f"{nsqd.name} stored {body[:20]!r}, which was NotSent")
        elif len(self.journal.stored[body]) > 1 and not published.may_repeat:
            self.journal.violated(f"{body[:20]!r} is stored twice, at {nsqd.name} last")

    def _on_sent(self, end: End, data: bytes, offered: bytes) -> None:
        if end.host != "client":
            return
        now = self.scheduler.now
        for body in _BODY.findall(offered):
            published = self.journal.publishes.get(_whole(self.journal, body))
            if published is not None:
                self.journal.sent[published.body] = now
                if end.has_eof and now - end.ended_at > 0.01:
                    # nsqd had ended the connection, and the kernel knew.
                    self.journal.sent[published.body] = -now
        if b"\nFIN " in data or data[:4] in (b"FIN ", b"RDY ", b"REQ ", b"TOUC", b"CLS\n"):
            self.journal.note(f"{end.address} to {end.peer.address}: {data[:120]!r}")
        # What is looked at has points, too.
        preempts, self.scheduler.preempts = self.scheduler.preempts, False
        for reader in self.readers:
            reader.on_sent(end, data)
            if len(self.samples) < _MOST_SAMPLES:
                self.samples += reader.samples(end)
        self.scheduler.preempts = preempts

    def _on_raised(self, task: SimTask) -> None:
        error = task.raised
        assert error is not None
        text = "".join(traceback.format_exception(error))
        self.journal.violated(f"{task.name} ended by {error!r}\n{text}")

    def _settle_accounts(self) -> None:
        journal = self.journal
        for published in journal.publishes.values():
            if not published.outcome:
                journal.violated(f"the publish of {published.body[:20]!r} never ended")
        if journal.violations:
            return
        waiting = {
            (nsqd.name, topic.name, channel.name): _waiting(channel)
            for nsqd in self.nsqds
            for topic in nsqd.broker.topics.values()
            for channel in topic.channels.values()
        }
        for (nsqd, topic, channel, body), since in journal.owed.items():
            if any(name == nsqd and when >= since for name, when, _ in journal.losses):
                continue
            found = waiting.get((nsqd, topic, channel))
            if found is None or (body not in found and None not in found):
                journal.violated(
                    f"{body[:20]!r} is neither handled nor waits on {channel} of {nsqd}"
                )

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
                if end.owner == owner:
                    text = f"{owner} has ended, and a connection to {end.peer.address} is left"
                    self.journal.violated(text)

        self.scheduler.after(0.05, look)

    def user(self, name: str, call: Callable[[], object]) -> SimTask:
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
            and not any(f.kind.startswith(("cut", "slow")) for f in self.plan.faults)
        )

    def has_timed_out(self, plan: ReaderPlan) -> bool:
        """Whether an nsqd has sent a message anew that the Reader counts still."""
        topics = [nsqd.broker.topics.get(plan.topic) for nsqd in self.nsqds]
        channels = [topic.channels.get(plan.channel) for topic in topics if topic is not None]
        return any(channel.timeout_count for channel in channels if channel is not None)

    @property
    def has_flooded(self) -> bool:
        return self._flooded

    @property
    def stood_still_lately(self) -> bool:
        """Whether what nsqd and the client think of a timeout may differ."""
        return self.scheduler.now < self._stood_still_at + 70.0

    def addresses(self) -> list[str]:
        return [nsqd.address for nsqd in self.nsqds]

    def urls(self) -> list[str]:
        return [lookupd.url for lookupd in self.lookupds]


def _whole(journal: Journal, head: bytes) -> bytes:
    """Bodies begin with a number, and are padded: the one that begins so."""
    return journal.by_head.get(head, b"")


def _waiting(channel: Channel) -> set[bytes | None]:
    """The bodies in its memory, and of what is under way from there; None: others are on disk."""
    found: set[bytes | None] = {message.body for message in channel.queue}
    found.update(message.body for message in channel.in_flight.values())
    found.update(message.body for _, _, message in channel.deferred)
    if channel.backlog is not None and channel.backlog.depth:
        found.add(None)
    return found


class _Lines(io.TextIOBase):
    """What is written becomes lines of the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._journal.note(line)
        return len(text)


class _WriterActor:
    """A Writer and the threads that publish with it."""

    def __init__(self, history: History, index: int, plan: WriterPlan) -> None:
        self.name = f"writer {index}"
        self.is_over = False
        self.close_asked = False
        self._history = history
        self._index = index
        self._plan = plan
        self._rng = random.Random(f"{self.name} {history.plan.seed}")
        self._number = 0
        self._closed_at: float | None = None
        self._tasks: list[SimTask] = []
        self._writer: Writer
        history.scheduler.after(plan.begins, self._begin)
        self._has_begun = False

    @property
    def alive(self) -> bool:
        return self._has_begun and not all(task.ended for task in self._tasks[1:])

    def _begin(self) -> None:
        history, plan = self._history, self._plan
        self._has_begun = True
        self._writer = Writer(
            () if plan.uses_lookupd else history.addresses(),
            lookupd_http_addresses=history.urls() if plan.uses_lookupd else (),
            runtime=history.runtime(self.name),
            **plan.keywords,
        )
        self._tasks.append(history.user(f"{self.name} owner", self._own))
        for thread in range(plan.threads):
            name = f"{self.name} thread {thread}"
            self._tasks.append(history.user(name, lambda thread=thread: self._publish_on(thread)))

    def _own(self) -> None:
        history = self._history
        closes_at = self._plan.closes_at
        while not self.close_asked and not (
            closes_at is not None and history.scheduler.now - 1000.0 >= closes_at
        ):
            history.sleep(0.5)
        self._closed_at = began = history.scheduler.now
        stood = history.stood_still
        self._writer.close()
        took = history.scheduler.now - began - (history.stood_still - stood)
        limit = self._plan.keywords["publish_timeout"] + 5.0 + _LEEWAY
        if not self.alive:
            history.look_for_leftovers(self.name)
        if took > limit:
            history.journal.violated(f"close() of {self.name} took {took:.2f} s of {limit:g}")

    def _publish_on(self, thread: int) -> None:
        history, plan, rng = self._history, self._plan, self._rng
        futures: list[tuple[Future[None], Publish]] = []
        for _ in range(plan.messages):
            if self.is_over or self.close_asked:
                break
            kind = rng.choice(plan.kinds)
            if not self._publish(thread, kind, futures):
                break
            self._pause()
        while any(not future.done() for future, _ in futures):
            history.sleep(0.05)

    def _pause(self) -> None:
        """Until it is time for the next publish; with bursts all threads begin together."""
        history, plan = self._history, self._plan
        if plan.bursts:
            until = (history.scheduler.now // plan.bursts + 1) * plan.bursts
        else:
            until = history.scheduler.now + self._rng.expovariate(1.0 / plan.pause)
        while (left := until - history.scheduler.now) > 0 and not self.is_over:
            history.sleep(min(left, 20.0))

    def _record(self, thread: int, kind: str) -> Publish:
        self._number += 1
        history, plan = self._history, self._plan
        body = b"w%d-%d-%d." % (self._index, thread, self._number)
        head = body
        body += b"x" * max(0, plan.size - len(body))
        published = Publish(
            body, plan.topic, kind, history.scheduler.now, plan.keywords["publish_timeout"]
        )
        published.stood_still = history.stood_still
        published.may_repeat = plan.keywords["retry_unknown"] and kind != "async"
        history.journal.publishes[body] = published
        history.journal.by_head[head] = body
        return published

    def _publish(self, thread: int, kind: str, futures: list[tuple[Future[None], Publish]]) -> bool:
        """Whether the Writer is open still."""
        history, plan, writer = self._history, self._plan, self._writer
        count = self._rng.choice((2, 5, 20)) if kind == "many" else 1
        records = [self._record(thread, kind) for _ in range(count)]
        bodies = [record.body for record in records]
        stood = history.stood_still
        began = history.scheduler.now
        acknowledged = 0
        error: BaseException | None = None
        try:
            if kind == "publish":
                writer.publish(plan.topic, bodies[0])
            elif kind == "defer":
                writer.publish(plan.topic, bodies[0], defer=self._rng.choice((0.01, 1.0)))
            elif kind == "many":
                writer.publish_many(plan.topic, bodies)
            else:
                future = writer.publish_async(plan.topic, bodies[0])
                futures.append((future, records[0]))
                future.add_done_callback(lambda future: self._ended(records[0], future.exception()))
        except NSQError as raised:
            error = raised
            acknowledged = getattr(raised, "acknowledged", 0) or 0
        took = history.scheduler.now - began - (history.stood_still - stood)
        limit = plan.keywords["publish_timeout"] + _LEEWAY
        if took > limit:
            history.journal.violated(
                f"{kind} of {bodies[0][:16]!r} took {took:.3f} s of {limit:g}: {error!r}"
            )
        if kind == "async" and error is None:
            return True
        for index, record in enumerate(records):
            self._ended(record, error if index >= acknowledged else None)
        return not isinstance(error, ClosedError)

    def _ended(self, record: Publish, error: BaseException | None) -> None:
        journal = self._history.journal
        record.ended = self._history.scheduler.now
        copies = journal.stored.get(record.body, [])
        shown = record.body[:16]
        if error is None:
            record.outcome = "ok"
            if not copies:
                journal.violated(f"{shown!r} was acknowledged, and no nsqd has stored it")
        elif isinstance(error, (NotSent, ClosedError)):
            record.outcome = "not sent"
            if copies and not record.may_repeat:
                journal.violated(f"{shown!r} is {error!r}, and {copies[0].nsqd} has stored it")
        elif isinstance(error, OutcomeUnknown):
            record.outcome = "unknown"
            sent = journal.sent.get(record.body)
            # Who stood still is taken for killed, and then nobody knows.
            if sent is None and self._history.stood_still == record.stood_still:
                journal.violated(f"{shown!r} is in doubt, and was not sent: {error!r}")
            elif sent is not None and sent < 0:
                journal.violated(f"{shown!r} is in doubt, sent after nsqd's EOF: {error!r}")
        elif isinstance(error, Refused):
            record.outcome = "refused"
        elif isinstance(error, PublishError):
            record.outcome = "failed"
        else:
            journal.violated(f"{shown!r} raised {error!r}")
        journal.note(f"{self.name}: {record.kind} {shown.decode()} {record.outcome} {error or ''}")


class _ReaderActor(Observer):
    """A Reader, its handler, and what its user does with it."""

    def __init__(self, history: History, index: int, plan: ReaderPlan) -> None:
        self.name = f"reader {index}"
        self.stop_asked = False
        self._history = history
        self._plan = plan
        self._rng = random.Random(f"{self.name} {history.plan.seed}")
        self._reader: Reader | None = None
        self._has_stopped = False
        self._is_stopping = False
        # What max_in_flight has been since the last time that no more than it was used.
        self._limit = self._allowed = plan.keywords["max_in_flight"]
        self._is_paused = False
        self._unsent: dict[bytes, tuple[float, Message]] = {}
        # The ids of all FINs that have left.
        self._sent: set[bytes] = set()
        # What each connection has sent last.
        self._tails: dict[End, bytes] = {}
        history.scheduler.after(plan.begins, self._begin)

    def _begin(self) -> None:
        history, plan = self._history, self._plan
        keywords = dict(plan.keywords)
        if plan.form != "handler":
            keywords["concurrency"] = 1
        self._reader = Reader(
            plan.topic,
            plan.channel,
            self._handle if plan.form == "handler" else None,
            nsqd_tcp_addresses=() if plan.uses_lookupd else history.addresses(),
            lookupd_http_addresses=history.urls() if plan.uses_lookupd else (),
            runtime=history.runtime(self.name),
            observer=self,
            **keywords,
        )
        history.user(f"{self.name} main", self._main)
        if plan.form == "handler":
            history.user(f"{self.name} owner", self._own)
        for when, what, argument in plan.changes:
            history.scheduler.at(
                1000.0 + max(when, plan.begins + 0.1),
                lambda what=what, argument=argument: self._change_aside(what, argument),
            )

    def _main(self) -> None:
        try:
            self._consume()
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            self._is_stopping = self._has_stopped = True
            self._history.look_for_leftovers(self.name)

    def _consume(self) -> None:
        reader, history = self._reader, self._history
        assert reader is not None
        if self._plan.form == "handler":
            result = reader.start()
        else:
            history.user(f"{self.name} owner", self._own)
            with reader:
                most = min(self._plan.keywords["max_in_flight"], self._rng.choice((1, 5, 50)))
                for messages in reader.batches(most, 0.2):
                    for message in messages:
                        self._take(message)
            result = reader.join()
        self._has_stopped = True
        if result is not None and not result.workers_running:
            history.look_for_leftovers(self.name)

    def _own(self) -> None:
        """Stops it when it is time, and looks how long that takes."""
        history, plan, reader = self._history, self._plan, self._reader
        assert reader is not None
        stops_at = plan.stops_at
        while not self.stop_asked and not (
            stops_at is not None and history.scheduler.now - 1000.0 >= stops_at
        ):
            history.sleep(0.3)
        self._is_stopping = True
        began, stood = history.scheduler.now, history.stood_still
        timeout = 30.0 if self.stop_asked else plan.stop_timeout
        reader.stop(timeout)
        while not self._has_stopped:
            took = history.scheduler.now - began - (history.stood_still - stood)
            if took > timeout + 12.0:
                history.journal.violated(f"stop({timeout:g}) of {self.name} takes {took:.1f} s")
                history._tell_tasks()
                return
            history.sleep(0.2)

    def _change_aside(self, what: str, argument: Any) -> None:
        if not self._is_stopping:
            self._history.user(f"{self.name} {what}", lambda: self._change(what, argument))

    def _change(self, what: str, argument: Any) -> None:
        reader, history = self._reader, self._history
        assert reader is not None
        history.journal.note(f"{self.name}: {what} {argument}")
        try:
            if what == "pause":
                self._is_paused = True
                reader.pause()
            elif what == "resume":
                self._is_paused = False
                reader.resume()
            elif what == "max_in_flight":
                self._allowed = max(self._allowed, argument)
                self._limit = argument
                reader.set_max_in_flight(argument)
            elif what == "remove_nsqd" and not self._plan.uses_lookupd:
                reader.remove_nsqd(history.nsqds[argument].address)
            elif what == "add_nsqd" and not self._plan.uses_lookupd:
                reader.add_nsqd(history.nsqds[argument].address)
            elif what == "stats":
                reader.stats()
        except ClosedError:
            if not self._is_stopping:
                raise

    # -- messages --------------------------------------------------------------------------------

    def _key(self, message: Message) -> tuple[str, bytes]:
        return (self._plan.channel, message.body)

    def _handle(self, message: Message) -> None:
        history, plan, rng = self._history, self._plan, self._rng
        if self._has_stopped:
            history.journal.violated(f"{self.name} handles {message.body[:16]!r} after its end")
        history.journal.note(f"{self.name}: handles {message.body[:16].decode()}"
                             f" {message.attempts}")  # fmt: skip
        if not history.is_over:
            if plan.work:
                history.sleep(rng.expovariate(1.0 / plan.work))
            if rng.random() < plan.slow:
                history.sleep(rng.uniform(0.5, 5.0))
            if rng.random() < plan.fails:
                if rng.random() < 0.2:
                    raise Requeue(rng.choice((0.0, 0.5)), rng.random() < 0.5)
                raise ValueError("the work failed")
            if rng.random() < plan.detaches:
                message.detach()
                delay = rng.uniform(0.0, 0.5)
                history.user(f"{self.name} later", lambda: self._finish_later(message, delay))
                return
        key = self._key(message)
        history.journal.handled[key] = history.journal.handled.get(key, 0) + 1
        self._watch_fin(message)

    def _finish_later(self, message: Message, delay: float) -> None:
        self._history.sleep(delay)
        self._answer(message)

    def _answer(self, message: Message) -> None:
        key = self._key(message)
        handled = self._history.journal.handled
        handled[key] = handled.get(key, 0) + 1
        self._watch_fin(message)
        if not message.finish():
            self._unsent.pop(message.id.encode(), None)

    def _take(self, message: Message) -> None:
        """Of the pull form."""
        history, plan, rng = self._history, self._plan, self._rng
        if not (history.is_over or self._is_stopping):
            if plan.work:
                history.sleep(rng.expovariate(1.0 / plan.work))
            if rng.random() < plan.forgets:
                return
            if rng.random() < plan.fails:
                message.requeue(rng.choice((None, 0.0)))
                return
        self._answer(message)

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """As an observer: nothing ends a connection where there is no fault."""
        history = self._history
        changes = {what for _, what, _ in self._plan.changes}
        if self._is_stopping or "remove_nsqd" in changes or history.has_timed_out(self._plan):
            return
        if history.is_calm:
            history.journal.violated(f"{self.name} has lost {nsqd_address}: {reason}")

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """As an observer: called before its FIN."""
        key = self._key(message)
        gave_up = self._history.journal.gave_up
        gave_up[key] = gave_up.get(key, 0) + 1

    def _watch_fin(self, message: Message) -> None:
        """A FIN leaves within 0.1 s, unless the connection is at its end or takes nothing."""
        history = self._history
        stood = history.stood_still
        id = message.id.encode()
        self._unsent[id] = (history.scheduler.now, message)

        def look() -> None:
            if self._unsent.pop(id, None) is None or history.stood_still != stood:
                return
            responder: Any = message._responder
            queue = responder.send_queue
            if responder.is_closed or queue is None or queue.is_stuck:
                return
            if id in self._sent:
                return  # another copy of it was answered
            history.journal.violated(f"FIN {message.id} has not left after {_FIN_SECONDS} s")

        history.scheduler.after(_FIN_SECONDS + 0.02, look)

    def on_sent(self, end: End, data: bytes) -> None:
        # A FIN may be torn in two.
        for id in re.findall(rb"FIN (.{16})\n", self._tails.get(end, b"") + data):
            self._unsent.pop(id, None)
            self._sent.add(id)
        self._tails[end] = data[-20:]
        if b"RDY " in data:
            self._check_rdy()

    def _check_rdy(self) -> None:
        reader = self._reader
        run = None if reader is None else reader._run
        if run is None:
            return
        if self._history.has_flooded or not self._history.answers_in_time:
            return
        used, now = 0, self._history.scheduler.now
        shown = []
        for connection in run.subscription.connections():
            queue = connection.send_queue
            if queue is not None and not connection.is_closed:
                # What nsqd has timed out, and may have sent again, counts no more there.
                sure = now + connection.msg_timeout * 0.05
                alive = sum(m.deadline > sure for m in connection.in_flight.values())
                used += max(queue.rdy_sent, alive)
                shown.append(f"{connection.nsqd_address} {queue.rdy_sent} {alive}")
        if used <= self._limit:
            self._allowed = self._limit
        elif used > self._allowed and not (
            self._history.stood_still_lately or self._history.has_timed_out(self._plan)
        ):
            self._history.journal.violated(
                f"{self.name}: sum of max(RDY, in flight) is {used}, the limit {self._allowed}:"
                f" {', '.join(shown)}"
            )

    def bytes_in_memory(self) -> int:
        run = None if self._reader is None else self._reader._run
        connections = [] if run is None else run.subscription.connections()
        return sum(len(m.body) for c in connections for m in list(c.in_flight.values()))

    def samples(self, end: End) -> list[Sample]:
        """RDY and messages in flight of the connection that sends now."""
        run = None if self._reader is None else self._reader._run
        if run is None or end.owner != self.name:
            return []
        return [
            Sample(
                self._history.scheduler.now,
                f"{self.name} {end.peer.address}",
                connection.send_queue.rdy_sent,
                len(connection.in_flight),
            )
            for connection in run.subscription.connections()
            if connection.send_queue is not None and connection.nsqd_address == end.peer.address
        ]

    # -- at rest ---------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """What waits for this Reader, though it could have it."""
        if self._reader is None or self._is_stopping or self._is_paused or not self._limit:
            return []
        found = []
        for nsqd in self._history.nsqds:
            if nsqd.options.max_rdy_count < 1:
                continue
            topic = nsqd.broker.topics.get(self._plan.topic)
            channel = None if topic is None else topic.channels.get(self._plan.channel)
            if channel is None:
                continue
            counts = (channel.depth, len(channel.in_flight), len(channel.deferred))
            if any(counts):
                text = "{} waiting, {} in flight, {} deferred".format(*counts)
                found.append(f"{nsqd.name} has {text} for {self.name}")
        return found
