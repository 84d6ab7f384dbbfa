"""A Reader of a history, its handler, and what its user does with it."""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit

from gnsqsync import Message, Observer, Reader, Requeue
from gnsqsync.errors import ClosedError
from gnsqsync.policy.backoff import Backoff, Phase, Rule
from gnsqsync.policy.rdy_turns import LONGEST_LOOK, LONGEST_REST
from tests.simulation.network import End
from tests.simulation.picture import Sample
from tests.simulation.plan import ReaderPlan
from tests.simulation.troubles import Struck

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["ReaderActor"]

# A FIN leaves so long after its handler at the latest.
_FIN_SECONDS = 0.1


class ReaderActor(Observer):
    """A Reader, its handler, and what its user does with it."""

    def __init__(self, history: History, index: int, plan: ReaderPlan) -> None:
        self.name = f"reader {index}"
        self.stop_asked = False
        self.group = plan.group
        self._history = history
        self.plan = self._plan = plan
        self._rng = random.Random(f"{self.name} {history.plan.chance}")
        self._reader: Reader | None = None
        self._has_stopped = False
        # Of the messages that the handler has done.
        self._count = 0
        # Since when a connection has had no turn, though it could have.
        self._waits_since: dict[Any, float] = {}
        # Since when no message has come on these connections, and how often RDY was raised then.
        self._quiet_since = 0.0
        self._quiet: object = None
        self._raises = 0
        self._is_stopping = False
        # What max_in_flight has been since the last time that no more than it was used.
        self._limit = self._allowed = plan.keywords["max_in_flight"]
        self._is_paused = False
        # The number of the pause after which a message was handled as a test.
        self._tested = 0
        self._unsent: dict[bytes, tuple[float, Message]] = {}
        # The ids of all FINs that have left.
        self._sent: set[bytes] = set()
        # When an id was requeued last.
        self._requeued: dict[bytes, float] = {}
        # When nsqd refused the TOUCH of an id last.
        self._refused: dict[bytes, float] = {}
        # What each connection has sent last.
        self._tails: dict[End, bytes] = {}
        if plan.form != "topics":
            history.scheduler.after(plan.begins, self.begin)

    def begin(self) -> None:
        """Make the Reader; and start it, unless a group does."""
        history, plan = self._history, self._plan
        keywords = dict(plan.keywords)
        if plan.form == "pull":
            keywords["concurrency"] = 1
        self._reader = Reader(
            plan.topic,
            plan.channel,
            None if plan.form == "pull" else self._handle,
            nsqd_tcp_addresses=() if plan.uses_lookupd else history.addresses(),
            lookupd_http_addresses=history.urls() if plan.uses_lookupd else (),
            runtime=history.runtime(self.name),
            observer=self,
            # Members of a group may have one channel.
            shared=True,
            **keywords,
        )
        if self.group is None:
            history.user(f"{self.name} main", self._main)
        if plan.form == "handler" and self.group is None:
            history.user(f"{self.name} owner", self._own)
        for when, what, argument in plan.changes:
            history.scheduler.at(
                1000.0 + max(when, plan.begins + 0.1),
                lambda what=what, argument=argument: self._change_aside(what, argument),
            )

    @property
    def reader(self) -> Reader | None:
        """None before it was made."""
        return self._reader

    def stops(self, backoff: Backoff) -> bool:
        """Whether it is this Reader's, and the Reader is told to stop."""
        run = None if self._reader is None else self._reader._run
        return self._is_stopping and run is not None and run.subscription.pauses.backoff is backoff

    def group_stops(self) -> None:
        """Its group is told to stop."""
        self._is_stopping = True

    def group_has_stopped(self) -> None:
        self._has_stopped = True
        self._history.look_for_leftovers(self.name)

    def _main(self) -> None:
        history = self._history
        try:
            with history.call():
                self._consume()
        except Struck:
            # As by Ctrl-C: it has stopped before that is raised, or the form's ``with`` has.
            self._is_stopping = self._has_stopped = True
            assert self._reader is not None
            self._reader.stop(0.0)
            try:
                result = self._reader.join()
            except Struck:
                return  # the third one; handlers may run still
            if result is not None and not result.workers_running:
                history.look_for_leftovers(self.name)
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            self._is_stopping = self._has_stopped = True
            history.look_for_leftovers(self.name)

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
            left = 0.3 if stops_at is None else stops_at - (history.scheduler.now - 1000.0)
            history.sleep(min(0.3, left))
        self._is_stopping = True
        began, stood = history.scheduler.now, history.troubles.stood_still
        timeout = 30.0 if self.stop_asked else plan.stop_timeout
        reader.stop(timeout)
        while not self._has_stopped:
            took = history.scheduler.now - began - (history.troubles.stood_still - stood)
            if took > timeout + 12.0:
                history.journal.violated(f"stop({timeout:g}) of {self.name} takes {took:.1f} s")
                history.tell_tasks()
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
            elif what == "remove_lookupd":
                reader.remove_lookupd(history.lookupds[argument].url)
            elif what == "add_lookupd":
                reader.add_lookupd(history.lookupds[argument].url)
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
        self._check_test()
        if self._has_stopped:
            history.journal.violated(f"{self.name} handles {message.body[:16]!r} after its end")
        history.journal.note(f"{self.name}: handles {message.body[:16].decode()}"
                             f" {message.attempts}")  # fmt: skip
        if not history.is_over:
            if plan.work:
                history.sleep(rng.expovariate(1.0 / plan.work))
            if rng.random() < plan.slow:
                history.sleep(rng.uniform(0.5, 5.0))
            if plan.kills and rng.random() < plan.kills:
                raise GreenletExit
            if plan.is_down(history.scheduler.now - 1000.0):
                raise ConnectionError("what the handler needs is down")
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
        self._count += 1
        if plan.stops_after == self._count and self._reader is not None:
            self._is_stopping = True
            self._reader.stop(plan.stop_timeout)

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
            if plan.is_down(history.scheduler.now - 1000.0) or rng.random() < plan.fails:
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

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        """Note, as an observer, that nsqd has taken the message back."""
        if code == "E_TOUCH_FAILED":
            self._refused[message_id.encode()] = self._history.scheduler.now

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """As an observer: called before its FIN."""
        key = self._key(message)
        gave_up = self._history.journal.gave_up
        gave_up[key] = gave_up.get(key, 0) + 1

    def _watch_fin(self, message: Message) -> None:
        """A FIN leaves within 0.1 s, unless the connection is at its end or takes nothing."""
        history = self._history
        stood = history.troubles.stood_still
        id = message.id.encode()
        self._unsent[id] = (history.scheduler.now, message)

        def look() -> None:
            if self._unsent.pop(id, None) is None or history.troubles.stood_still != stood:
                return
            responder: Any = message._responder
            queue = responder.send_queue
            if responder.is_closed or queue is None or queue.is_stuck:
                return
            if self._refused.get(id, 0.0) > message._received_at:
                return  # nsqd has taken it back, and said so of a TOUCH: there is nothing to finish
            if id in self._sent or self._requeued.get(id, 0.0) > message._received_at:
                return  # another copy of it was answered
            history.journal.violated(f"FIN {message.id} has not left after {_FIN_SECONDS} s")

        # Some turns of all tasks, too.
        slow = 0.02 + 5000 * history.plan.turn_seconds
        history.scheduler.after(_FIN_SECONDS + slow, look)

    def on_sent(self, end: End, data: bytes) -> None:
        # A FIN may be torn in two.
        for id in re.findall(rb"FIN (.{16})\n", self._tails.get(end, b"") + data):
            self._unsent.pop(id, None)
            self._sent.add(id)
        for id in re.findall(rb"REQ (.{16}) ", self._tails.get(end, b"") + data):
            self._requeued[id] = self._history.scheduler.now
        self._tails[end] = data[-20:]
        if b"RDY " in data and end.owner == self.name:
            self._check_rdy()
            self._check_backoff(data)
            if re.search(rb"RDY [1-9]", data):
                self._check_looks()
                for connection in self._waits_since:
                    if connection.nsqd_address == end.peer.address:
                        self._waits_since[connection] = self._history.scheduler.now

    def _check_backoff(self, data: bytes) -> None:
        """In a pause of the backoff no nsqd may send; during a test one may send one message."""
        run = None if self._reader is None else self._reader._run
        if run is None or not re.search(rb"RDY [1-9]", data):
            return
        now, backoff = self._history.scheduler.now, run.subscription.pauses.backoff
        changed_at = getattr(backoff, "changed_at", now)
        if now - changed_at < 0.01 + 1000 * self._history.plan.turn_seconds:
            return  # decided before
        if backoff.phase is Phase.BLOCKED:
            self._history.journal.violated(f"{self.name} sends {data[:60]!r} in a pause")
        elif backoff.phase is Phase.TESTING:
            queues = [c.send_queue for c in run.subscription.connections() if not c.is_closed]
            levels = [queue.rdy_sent for queue in queues if queue is not None]
            if sum(levels) > 1 and not any(q.is_stuck for q in queues if q is not None):
                self._history.journal.violated(f"{self.name} tests with RDY {levels}")
        elif backoff.limit is not None:
            queues = [c.send_queue for c in run.subscription.connections() if not c.is_closed]
            levels = [queue.rdy_sent for queue in queues if queue is not None]
            used = sum(len(c.in_flight) for c in run.subscription.connections())
            if sum(levels) > max(backoff.limit, used) and not any(q.is_stuck for q in queues if q):
                self._history.journal.violated(
                    f"{self.name} grows to RDY {levels} with a limit of {backoff.limit}"
                )

    def _check_test(self) -> None:
        """A test is one message: what waited before the pause went back. As a handler begins."""
        history = self._history
        run = None if self._reader is None else self._reader._run
        if run is None or not self._is_watched(run):
            return
        backoff = run.subscription.pauses.backoff
        if backoff.phase is not Phase.TESTING or backoff.rule is not Rule.OUTAGES:
            return
        if getattr(backoff, "resumes", 0) == self._tested:
            history.journal.violated(f"{self.name} handles a second message in one test")
        self._tested = getattr(backoff, "resumes", 0)

    def _is_watched(self, run: Any) -> bool:
        """Return True if nsqd sends nothing but what it is asked for, and in time."""
        troubles = self._history.troubles
        stands = troubles.has_flooded or troubles.stood_still or troubles.stood_still_lately
        return not (
            stands or self._is_stopping or self._history.has_timed_out(self._plan)
        ) and bool(self._history.answers_in_time)

    def check_pause(self) -> None:
        """In a pause no message waits here for a handler, and a growth ends. Each second."""
        run = None if self._reader is None else self._reader._run
        if run is None or not self._is_watched(run) or self._plan.form != "handler":
            return
        backoff = run.subscription.pauses.backoff
        since = self._history.scheduler.now - getattr(backoff, "changed_at", math.inf)
        if backoff.phase is Phase.GROWING and since > 6.5:
            self._history.journal.violated(f"{self.name} has grown for {since:.1f} s")
        if not backoff.gives_back or since < 0.5:
            return
        for connection in run.subscription.connections():
            waiting = [m for m in connection.in_flight.values() if not m._status]
            if waiting and not connection.is_closed and not connection.send_queue.is_stuck:
                self._history.journal.violated(
                    f"{self.name} keeps {len(waiting)} messages of {connection.nsqd_address} in a"
                    " pause"
                )

    def _check_looks(self) -> None:
        """A Reader to which nothing comes looks at its nsqds less and less often."""
        run, now = None if self._reader is None else self._reader._run, self._history.scheduler.now
        if run is None or self.group is not None or self._plan.changes or self._plan.fails:
            return
        connections = run.subscription.connections()
        quiet = [(id(c), c.received) for c in connections if not c.is_closed]
        if quiet != self._quiet or self._history.troubles.stood_still_lately:
            self._quiet, self._quiet_since, self._raises = quiet, now, 0
        self._raises += 1
        shortest = min(LONGEST_LOOK, self._plan.keywords["low_rdy_idle_timeout"] / self._limit)
        most = 10 * len(quiet) + 10 + 1.1 * (now - self._quiet_since) / shortest
        if self._raises > most:
            self._history.journal.violated(
                f"{self.name} has raised RDY {self._raises} times in"
                f" {now - self._quiet_since:.1f} s without a message"
            )

    def check_turns(self) -> None:
        """Each nsqd gets its turn within the bound of the RdyAllocator; called each second."""
        history, plan = self._history, self._plan
        run = None if self._reader is None else self._reader._run
        is_steady = (
            run is not None
            and not (self._is_stopping or self._is_paused or self.group is not None)
            and run.subscription.pauses.backoff.phase is Phase.OPEN
            and not plan.changes
            and not (plan.fails or plan.down)
            and not (plan.forgets or plan.kills or history.troubles.stood_still_lately)
        )
        if run is None or not is_steady:
            self._waits_since.clear()
            return
        now, connections = history.scheduler.now, run.subscription.connections()
        able = [c for c in connections if not c.is_closed and c.negotiated.max_rdy_count]
        if set(able) != self._waits_since.keys():
            self._waits_since = dict.fromkeys(able, now)
        # A message waits for those before it, and each handler takes ten times its mean, or 5 s.
        longest = self._limit * max(10 * plan.work, 5.0 if plan.slow else 0.1)
        turn = LONGEST_LOOK + LONGEST_REST + longest + 0.5
        bound = len(able) * turn + 5.0
        for connection in able:
            queue = connection.send_queue
            if queue is None or queue.is_stuck or queue.rdy_sent or connection.in_flight:
                self._waits_since[connection] = now
            elif now - self._waits_since[connection] > bound:
                history.journal.violated(
                    f"{connection.nsqd_address} has had no turn of {self.name} for {bound:.0f} s"
                )

    def _check_rdy(self) -> None:
        reader = self._reader
        run = None if reader is None else reader._run
        if run is None:
            return
        if self._history.troubles.has_flooded or not self._history.answers_in_time:
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
            self._history.troubles.stood_still_lately or self._history.has_timed_out(self._plan)
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
        if self.group is not None and (self._reader._run is None or self._reader._run.has_ended):
            return []  # a TopicGroup has stopped it, as the topic was listed nowhere
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
