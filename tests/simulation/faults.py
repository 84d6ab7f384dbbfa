"""Deliberate faults: each is put into the code alone, and histories have to show it.

``python -m tests.simulation --faults`` tells after how many histories each is seen.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.points import Change

__all__ = ["FAULTS", "DeliberateFault"]


class DeliberateFault(NamedTuple):
    """``about``: what a user would meet."""

    about: str
    changes: tuple[Change, ...]


def _fault(about: str, module: str, old: str, new: str) -> DeliberateFault:
    return DeliberateFault(about, (Change(f"gnsqsync.{module}", old, new),))


FAULTS: dict[str, DeliberateFault] = {
    # -- what the simulation has found, put back ---------------------------------------------------
    "sends for others without end": _fault(
        "a publish on a slow link returns long after its timeout",
        "connection.send_queue",
        "            if now >= until:\n                return False\n            self._stream",
        "            until = max(until, now + 1.0)\n            self._stream",
    ),
    "sender taken for killed": _fault(
        "a publish is in doubt because another thread sent at the same time, twice",
        "connection.send_queue",
        "            if not is_suspect:\n",
        "            if False:\n",
    ),
    "lookup connection left": _fault(
        "a connection to nsqlookupd outlives stop()",
        "http.limits",
        "                if pool is not None:\n                    pool.close()\n",
        "                if pool is not None:\n                    pass\n",
    ),
    # -- publishing --------------------------------------------------------------------------------
    "EOF unread while the turn is lent": _fault(
        "T21: a publish goes into a connection that nsqd has ended, and is in doubt",
        "connection.publish_queue",
        "        if self._peer_has_ended():\n",
        "        if False and self._peer_has_ended():\n",
    ),
    "answers in the wrong order": _fault(
        "a publish gets the answer of another one",
        "connection.publish_replies",
        "                slot = pending.popleft()\n",
        "                slot = pending.pop()\n",
    ),
    "loss taken for not sent": _fault(
        "a publish that nsqd has stored is NotSent",
        "connection.publish_queue",
        "                yield slot, OutcomeUnknown(text)\n",
        "                yield slot, NotSent(text)\n",
    ),
    "late answer taken for not sent": _fault(
        "a publish whose time was over is NotSent, and stored",
        "connection.publish_queue",
        "        except ValueError:\n            return False\n        return True\n",
        "        except ValueError:\n            return True\n        return True\n",
    ),
    "what was not sent stays pending": _fault(
        "a publish is in doubt though no byte of it has left",
        "connection.publish_queue",
        "                if isinstance(error, Exception):\n                    self._put_back()\n",
        "",
    ),
    "a lock left out at the turn": _fault(
        "two publishers read from one connection",
        "connection.read_turn",
        "        with self._mutex:\n            if self.state is _FREE:\n                # ``_g",
        "        if True:\n            if self.state is _FREE:\n                # ``_g",
    ),
    "a lock left out at the release": _fault(
        "the turn to read is given to two publishers",
        "connection.read_turn",
        "        with self._mutex:\n            self._waiting.pop(caller, None)\n",
        "        if True:\n            self._waiting.pop(caller, None)\n",
    ),
    "a lock left out of the send": _fault(
        "two senders mix their bytes",
        "connection.publish_queue",
        "            if self.slots or self.commands or not lock.acquire(False):\n",
        "            lock.acquire(False)\n            if self.slots or self.commands:\n",
    ),
    "a wait without a deadline": _fault(
        "a publish waits for an nsqd that says nothing, for ever",
        "writer.publisher",
        "        while (left := deadline - self._now()) > 0:\n            if conn",
        "        while (left := 5.0) > 0 and not slot.done:\n            if conn",
    ),
    "published again in doubt": _fault(
        "a message is stored twice, though retry_unknown is False",
        "writer.publisher",
        "            return self._retry_unknown\n",
        "            return True\n",
    ),
    # -- consuming ---------------------------------------------------------------------------------
    "FIN in two places": _fault(
        "each message is finished twice",
        "reader.workers",
        "                    fins.append(id)\n",
        "                    fins.append(id)\n                    fins.append(id)\n",
    ),
    "FIN before the handler": _fault(
        "a message is finished though its handler fails",
        "reader.workers",
        "            message._status = BEGUN\n            try:\n",
        "            message._status = BEGUN\n"
        "            fins.append(message._id)\n            try:\n",
    ),
    "RDY raised before it is lowered": _fault(
        "more messages than max_in_flight",
        "reader.rdy_control",
        "            transit=_TRANSIT_SECONDS,\n",
        "            transit=0.0,\n",
    ),
    "RDY counts no messages in flight": _fault(
        "more messages than max_in_flight",
        "policy.rdy",
        "        free = max(0, self.max_in_flight - sum(used))\n",
        "        free = self.max_in_flight\n",
    ),
    "no lock at an RDY round": _fault(
        "two threads plan RDY at the same time",
        "reader.subscription",
        "    def _replan(self) -> None:\n        with self._lock:\n",
        "    def _replan(self) -> None:\n        if True:\n",
    ),
    "backoff that never ends": _fault(
        "after one failure no message comes any more",
        "policy.backoff",
        "            resume_at = now + pause\n",
        "            resume_at = now + pause + 1e6\n",
    ),
    "a pause that never ends": _fault(
        "after an outage no message comes any more",
        "policy.backoff",
        "        if self.next_at is None or now < self.next_at:\n",
        "        if self.next_at is None or self.resume_at is not None:\n",
    ),
    "RDY in a pause of the backoff": _fault(
        "messages come while the backoff says that none shall",
        "policy.rdy",
        "self.max_in_flight == 0 or self.phase is Phase.BLOCKED:",
        "self.max_in_flight == 0:",
    ),
    "a test with many messages": _fault(
        "the backoff tests with more than one message",
        "policy.rdy",
        "            self._test.target = 1\n",
        "            self._test.target = 5\n",
    ),
    "an nsqd that never gets its turn": _fault(
        "with more nsqds than max_in_flight one is never consumed from",
        "policy.rdy",
        "key=lambda node: (node.turn.rests_until > now, node.queued, node.draw))\n",
        "key=lambda node: node.draw)\n",
    ),
    "an nsqd forgotten": _fault(
        "with more nsqds than max_in_flight, one that had nothing is never looked at again",
        "policy.rdy",
        "if not node.rdy and not node.in_flight]\n",
        "if not node.rdy and not node.in_flight and node.turn.had_message]\n",
    ),
    "RDY 1 raised while another is open": _fault(
        "with more nsqds than max_in_flight more messages than that are handled at once",
        "reader.rdy_control",
        "Load(len(connection.in_flight), ",
        "Load(0, ",
    ),
    "looks that never grow": _fault(
        "an idle Reader asks its nsqds fifty times a second for ever",
        "policy.rdy_turns",
        "            self._seconds = min(_GROWTH * self._seconds, LONGEST_LOOK)\n",
        "",
    ),
    "a turn without a bound": _fault(
        "with more nsqds than max_in_flight a full one sends on and on",
        "reader.rdy_control",
        "                level.allow(begun[address], loads[address].received)\n",
        "                level.allow(None)\n",
    ),
    "a child that uses its parent's connections": _fault(
        "a forked worker mixes its publishes with those of its parent",
        "writer.writer",
        "            self._by_process.pop(pid).pool.abandon()\n",
        "            pool = self._by_process.pop(pid)\n"
        "            self._by_process[os.getpid()] = pool\n",
    ),
    "forgotten messages keep their slots": _fault(
        "T30: the Reader gets slower, and stops",
        "connection.in_flight",
        "            if over_at <= now and message._status & BEGUN:\n",
        "            if False and over_at <= now and message._status & BEGUN:\n",
    ),
    "no ceiling for messages": _fault(
        "T28: an nsqd that ignores RDY fills the memory",
        "connection.messages",
        "        if len(table) > allowed:\n",
        "        if False and len(table) > allowed:\n",
    ),
    "housekeeping that falls asleep": _fault(
        "a FIN waits behind a long handler",
        "reader.housekeeping",
        "        # Messages may have come, and been finished, between the look and the flag.\n"
        "        if self._look_after_all():\n            self.wake()\n",
        "        return\n",
    ),
    "no sweep of unsent FINs": _fault(
        "a FIN waits behind a long handler",
        "reader.housekeeping",
        "        if send_queue.has_unsent:\n            send_queue.flush()\n",
        "",
    ),
    "a timer that is not woken": _fault(
        "a job waits for the one that was first before",
        "runtime.timer",
        "        if first is None or when < first:\n            self._changed.set()\n",
        "        if first is None:\n            self._changed.set()\n",
    ),
    "a timer that clears too late": _fault(
        "a job that is added while the timer looks is late",
        "runtime.timer",
        "            self._changed.clear()\n"
        "            if self._stopping:\n                return\n            now",
        "            if self._stopping:\n                return\n            now",
    ),
    "handlers go on after the stop": _fault(
        "a handler begins after stop(0)",
        "reader.workers",
        "            if not connection.delivers:\n",
        "            if False and not connection.delivers:\n",
    ),
    # -- servers that go away ----------------------------------------------------------------------
    "silence that nobody notices": _fault(
        "an nsqd that lost its power is never dialled again",
        "connection.link",
        "        stream.set_read_timeout(self._silence)\n",
        "        stream.set_read_timeout(None)\n",
    ),
    "heartbeats without an answer": _fault(
        "nsqd closes quiet connections",
        "connection.send_queue",
        "        if commands.NOP not in self.commands:\n",
        "        if False and commands.NOP not in self.commands:\n",
    ),
    "a lost nsqd is not dialled again": _fault(
        "messages wait at an nsqd that is back",
        "reader.subscription",
        "                again = self._nodes.ended(connection.address, now)\n",
        "                again = None\n",
    ),
    "a thread that does not start": _fault(
        "an nsqd whose thread could not be started is never dialled again",
        "reader.subscription",
        "            self._dial_failed(connection, failure)\n            if not isinstance",
        "            if not isinstance",
    ),
    "a poll that ends at a failure": _fault(
        "after one failed question an nsqlookupd is asked no more",
        "discovery.shared_poll",
        "            while self._goes_on():\n",
        "            while self._goes_on() and not self.failures:\n",
    ),
    # -- the end -----------------------------------------------------------------------------------
    "a query that is not cut": _fault(
        "T29: an nsqlookupd that drips holds a thread after stop()",
        "discovery.shared_poll",
        "        self._is_cut = True\n        self.client.cut()\n",
        "        self._is_cut = True\n",
    ),
    "connections left at the stop": _fault(
        "a connection outlives stop()",
        "reader.running_reader",
        "        self.subscription.close()\n        self.subscription.join()\n",
        "",
    ),
    "connections left at the close": _fault(
        "a connection outlives close()",
        "writer.nsqd_pool",
        "            connection.close()\n        join_or_cut(self._dials.tasks()",
        "        (self._dials.tasks()",
    ),
}
