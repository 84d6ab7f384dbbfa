"""Poll threads, one for each nsqlookupd. Tells what is listed; closes nothing, dials nothing."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gnsqsync.addresses import Address
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import HTTPError, NSQError
from gnsqsync.foreign import ends_worker, repr_of
from gnsqsync.runtime import Event, Latch, Runtime, Task
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles, used_by

if TYPE_CHECKING:
    from gnsqsync.http.clients import LookupdHTTP

__all__ = [
    "ALL_NSQDS",
    "ALL_TOPICS",
    "Discovery",
    "Found",
    "Question",
    "nsqds_of",
]

Found = TypeVar("Found")

log: logging.Logger = logging.getLogger("gnsqsync.lookupd")

# A lookupd that failed is asked again after 1, 2, 4 ... seconds, at most the poll interval.
_FIRST_RETRY = 1.0
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Question(Generic[Found]):
    """What nsqlookupds are asked for; ``what`` is its name in the log."""

    what: str
    ask: Callable[[LookupdHTTP], set[Found]]


def nsqds_of(topic: str) -> Question[Address]:
    """The nsqds that have ``topic``."""
    return Question(topic, lambda client: {p.tcp_address for p in client.lookup(topic).producers})


def _all_nsqds(client: LookupdHTTP) -> set[Address]:
    nodes = client.nodes()
    return {n.tcp_address for n in nodes if not n.tombstones or not all(n.tombstones)}


# Those of which every topic is tombstoned count as not listed.
ALL_NSQDS = Question("nsqds", _all_nsqds)
ALL_TOPICS: Question[str] = Question("topics", lambda client: set(client.topics()))


class Discovery(Generic[Found]):
    """Asks every nsqlookupd one question again and again, each on a thread of its own.

    All are asked in each round and their answers merged by the receiver, so a dead or lying one
    delays nothing. Each wait has its own jitter, so consumers started together drift apart.
    A client is made for each URL of ``lookups`` by the constructor, and for others by ``add()``.
    ``found(source, answer)`` is called with each answer, ``changed(url, error)`` when an
    nsqlookupd begins to fail or, with None, works again; both by the poll thread.
    ``_lock`` guards the tables of polls and tasks.
    """

    def __init__(
        self,
        question: Question[Found],
        lookups: Lookups,
        found: Callable[[Hashable, set[Found]], None],
        changed: Callable[[str, Exception | None], None],
        runtime: Runtime,
    ) -> None:
        self._question = question
        self._lookups = lookups
        self._found = found
        self._changed = changed
        self._runtime = runtime
        self._lock = runtime.lock()
        self._stopped = False
        self._polls = {url: self._poll(url) for url in lookups.urls}
        self._tasks: list[Task] = []
        runtime.on_fork(self._after_fork)

    def start(self) -> None:
        with self._lock:
            polls = list(self._polls.values())
        for poll in polls:
            self._begin(poll)

    def add(self, url: str) -> None:
        """Ask this one, too, from now on. Nothing happens when it is asked already."""
        with self._lock:
            known = url in self._polls
        if known:
            return
        new = self._poll(url)
        with self._lock:
            poll = self._polls.setdefault(url, new)
        if poll is new:
            self._begin(poll)
        else:
            new.client.close()

    def _poll(self, url: str) -> _Poll:
        client = self._lookups.client(url, self._runtime)
        return _Poll(client, self._runtime.event(), self._runtime.event())

    def _begin(self, poll: _Poll) -> None:
        with self._lock:
            if poll.begun:
                return
            poll.begun = True
            stopped = self._stopped
            self._tasks = [task for task in self._tasks if task.alive]
        if stopped:
            self._end(poll)
            return
        try:
            task = self._runtime.spawn(f"nsq-lookup {poll.client.url}", self._run, poll)
        except BaseException:
            # So that it can be added once more.
            with self._lock:
                self._polls = {url: other for url, other in self._polls.items() if other != poll}
            poll.client.close()
            raise
        with self._lock:
            self._tasks.append(task)

    def _end(self, poll: _Poll) -> None:
        poll.client.close()
        troubles().leaves(poll, poll.client.url)

    def remove(self, url: str) -> None:
        """Ask this one no more: its thread ends, and what it listed counts no longer.

        A query under way is cut; ``join()`` waits for that, not this call.
        """
        with self._lock:
            poll = self._polls.pop(url, None)
        if poll is not None:
            poll.end()
            self._found(poll, set())

    @property
    def has_any(self) -> bool:
        """Whether any is asked, so that more may be found."""
        return bool(self._polls)

    def stop(self) -> None:
        """Wake all poll threads, which then end; a query under way is cut."""
        with self._lock:
            self._stopped = True
        self.let_go()

    def let_go(self) -> None:
        """As ``stop()``, for the garbage collector: takes no lock. No URL is added any more."""
        self._stopped = True
        for poll in list(self._polls.values()):
            poll.end()

    def _after_fork(self) -> None:
        # A greenlet that was copied into the child ends there, and none takes its place.
        self._stopped = True

    def hurry(self, pause: float = _FIRST_RETRY) -> None:
        """Ask those now that were asked last ``pause`` seconds ago or earlier."""
        now = self._runtime.now()
        for poll in list(self._polls.values()):
            if now - poll.asked_at >= pause:
                poll.due.set()

    def wait(self, news: Latch, until: float) -> None:
        """Wait for ``news`` until ``until``; nsqlookupds are asked more often meanwhile."""
        while (left := until - self._runtime.now()) > 0:
            if not self.has_any:
                news.wait(left)
                return
            self.hurry()
            if news.wait(min(left, _FIRST_RETRY)):
                return

    @property
    def failures(self) -> list[Exception]:
        """Of the nsqlookupds that cannot be asked now; each names its URL."""
        polls = list(self._polls.values())
        return [error for poll in polls if (error := poll.error) is not None]

    def not_asked(self, seconds: float) -> list[tuple[str, float]]:
        """Those whose thread is away for ``seconds`` longer than between two questions, and for
        how long. Takes no lock."""
        now = self._runtime.now()
        usual = self._lookups.poll_interval * (1 + self._lookups.poll_jitter / 2)
        return [
            (url, now - poll.came_round_at)
            for url, poll in list(self._polls.items())
            if now - poll.came_round_at > usual + seconds
        ]

    def join(self, timeout: float = _JOIN_SECONDS) -> None:
        deadline = self._runtime.now() + timeout
        with self._lock:
            tasks = list(self._tasks)
        for task in tasks:
            task.join(max(0.0, deadline - self._runtime.now()))

    def _run(self, poll: _Poll) -> None:
        troubles().uses(poll.client.url, poll, self._question.what)
        try:
            while not poll.stopped.is_set():
                if poll.asked_at < math.inf:
                    poll.due.wait(self._pause(poll.failures))
                poll.asked_at = math.inf
                poll.came_round_at = self._runtime.now()
                poll.due.clear()
                if not poll.stopped.is_set():  # end() may have set both before the clear()
                    try:
                        self._ask(poll)
                    finally:
                        poll.asked_at = self._runtime.now()
        except BaseException:
            # Such as a gevent.Timeout out of an observer's hook. Another thread goes on.
            with self._lock:
                poll.begun = False
            self._begin(poll)
            raise
        self._end(poll)
        if not self._stopped:
            # An answer may have crossed with remove().
            self._found(poll, set())

    def _usual_pause(self, failures: int) -> float:
        """Seconds until it is asked again, before the jitter."""
        if not failures:
            return self._lookups.poll_interval
        return min(self._lookups.poll_interval, _FIRST_RETRY * 2.0 ** min(failures - 1, 16))

    def _pause(self, failures: int) -> float:
        jitter = self._lookups.poll_jitter / 2
        return self._usual_pause(failures) * random.uniform(1 - jitter, 1 + jitter)

    def _ask(self, poll: _Poll) -> None:
        try:
            answer = self._lookup(poll)
        except NSQError as error:
            # At the end the query was cut; that is no failure to report.
            if not poll.stopped.is_set():
                self._failed(poll, error)
        except BaseException as error:
            # A session of the user's may raise anything, and without this thread discovery ends.
            if ends_worker(error):
                raise
            if not isinstance(error, Exception):
                error = RuntimeError(f"the session raised {repr_of(error)}")
            self._failed(poll, error)
        else:
            recovered = poll.failures > 0
            poll.failures = 0
            poll.error = None
            if not poll.stopped.is_set():
                self._found(poll, answer)
            if recovered:
                self._tell_recovered(poll.client.url)
                self._changed(poll.client.url, None)

    def _failed(self, poll: _Poll, error: Exception) -> None:
        # One line says that it fails; a broken server may send a new text each time.
        poll.failures += 1
        poll.error = error
        url = poll.client.url
        tell = troubles().began(url, AWAY)
        if tell is not None:
            expected = isinstance(error, NSQError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "lookup of %s at %s failed: %s; it is asked again in about %s%s%s",
                self._question.what,
                url,
                error if expected else repr_of(error),
                duration(self._usual_pause(poll.failures)),
                used_by(tell, "lookups"),
                more(tell),
                exc_info=None if expected else error,
            )
        if poll.failures == 1:
            self._changed(url, error)

    def _tell_recovered(self, url: str) -> None:
        over = troubles().ended(url)
        if over is not None:
            log.warning(
                "lookup of %s works again at %s after %s%s",
                self._question.what,
                url,
                duration(over.seconds),
                used_by(over, "lookups"),
            )

    def _lookup(self, poll: _Poll) -> set[Found]:
        try:
            answer = self._question.ask(poll.client)
        except HTTPError as error:
            # Another 404 comes from something that is not nsqlookupd.
            if error.code != "TOPIC_NOT_FOUND":
                raise
            # The normal state before the first publish.
            log.log(
                logging.DEBUG if poll.unknown else logging.INFO,
                "%s does not know topic %s yet",
                poll.client.url,
                self._question.what,
            )
            poll.unknown = True
            return set()
        poll.unknown = False
        return answer


class _Poll:
    """One nsqlookupd that is asked.

    Only its thread changes ``failures``, ``error``, ``unknown``, ``came_round_at``, when it last
    began to ask, and ``asked_at``, which is infinity before the first question and while it asks.
    ``begun``, under the lock: it has a thread.
    """

    def __init__(self, client: LookupdHTTP, stopped: Event, due: Event) -> None:
        self.client = client
        self.stopped = stopped
        self.due = due
        self.begun = False
        self.asked_at = math.inf
        # Infinity until its thread has begun.
        self.came_round_at = math.inf
        self.failures = 0
        self.error: Exception | None = None
        self.unknown = False

    def end(self) -> None:
        self.stopped.set()
        self.due.set()
        self.client.cut()
