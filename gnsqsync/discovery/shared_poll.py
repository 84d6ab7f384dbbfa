"""Poll thread of one nsqlookupd and one question, shared by all who ask the same.

Knows when to ask and whom to tell. Must not know what an answer means.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from gnsqsync.discovery.questions import Found, Question
from gnsqsync.errors import HTTPError, NSQError
from gnsqsync.foreign import ends_worker, repr_of
from gnsqsync.policy.polls import PollPauses
from gnsqsync.runtime import Latch, Runtime, Task
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles, used_by

if TYPE_CHECKING:
    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["Asker", "NoThread", "SharedPoll", "share"]

log: logging.Logger = logging.getLogger("gnsqsync.lookupd")

# Seconds for which an answer also serves a later asker. A hundred Readers that start one after the
# other ask once.
_FRESH_SECONDS = 1.0

# Polls of this process that have askers. No lock: single operations on a dict are atomic. A key
# begins with the process id, so that a forked child shares none of its parent's.
_polls: dict[Hashable, SharedPoll[Any]] = {}


class NoThread(RuntimeError):
    """The process is short of threads, so that nobody asks an nsqlookupd."""


@dataclass(slots=True, eq=False)
class Asker(Generic[Found]):
    """A Reader, Writer or TopicGroup at one nsqlookupd. As ``source`` it marks the answers.

    ``searching``: True while no nsqlookupd of the asker lists anything. ``alone``: True while none
    of them answers. The poll thread writes ``is_told``, ``lists``, ``fails`` and ``busy``.
    """

    interval: float
    jitter: float
    found: Callable[[Hashable, set[Found]], None]
    changed: Callable[[str, Exception | None], None]
    searching: Callable[[], bool]
    alone: Callable[[], bool]
    # True once the asker must not be told anything more.
    gone: bool = False
    # True once an answer or a failure was told.
    is_told: bool = False
    # True while the last answer listed something.
    lists: bool = False
    # True while the nsqlookupd fails and ``changed`` was called because of that.
    fails: bool = False
    # Latch that is released at the end of the call under way; None without a call.
    busy: Latch | None = None

    def call(self, latch: Latch, method: Callable[..., None], *args: object) -> None:
        self.busy = latch
        try:
            if not self.gone:
                method(*args)
        finally:
            self.busy = None
            latch.release()


class SharedPoll(Generic[Found]):
    """Repeated question to one nsqlookupd, on a thread of its own.

    ``_lock`` guards ``askers`` (a tuple that is replaced as a whole), ``over``, ``task`` and the
    place in ``_polls``. The poll thread alone changes ``failures``, ``error``, ``unknown``,
    ``asked_at`` (infinity while it asks), and ``came_round_at`` (when it last began to ask).

    The interval is the shortest of the askers', with its jitter.
    """

    def __init__(
        self,
        key: Hashable,
        question: Question[Found],
        new_client: Callable[[], LookupdHTTP],
        runtime: Runtime,
    ) -> None:
        self._key = key
        self._question = question
        self._new_client = new_client
        self.client: LookupdHTTP = new_client()
        self.url: str = self.client.url
        self._runtime = runtime
        self._lock = runtime.lock()
        # Set when the thread must look again.
        self._due = runtime.event()
        self._pauses = PollPauses()
        self.askers: tuple[Asker[Found], ...] = ()
        self.task: Task | None = None
        # True once the last asker has left. No asker can join then.
        self.over: bool = False
        # True when an asker wants an answer newer than the last one.
        self._hurried = False
        # True once the client was cut, so that it asks nothing more.
        self._is_cut = False
        # Time of the next question, and the last answer; None after a failure.
        self._next_at = -math.inf
        self._answer: set[Found] | None = None
        self.asked_at: float = math.inf
        self.came_round_at: float = runtime.now()
        self.failures: int = 0
        self.error: Exception | None = None
        self.unknown: bool = False
        runtime.on_fork(self._after_fork)

    # -- askers ------------------------------------------------------------------------------

    def take(self, asker: Asker[Found]) -> bool:
        """Add an asker, and start the thread if there is none. Return False if the poll is over.

        Raises NoThread if no thread can be started.
        """
        with self._lock:
            if self.over:
                return False
            self.askers = (*self.askers, asker)
            try:
                if self.task is None:
                    self.task = self._spawn()
            except BaseException:
                # The asker has no thread: none could be started, or a kill struck here.
                self._drop(asker)
                if not self.askers:
                    self.client.close()
                raise
        self._due.set()
        return True

    def leave(self, asker: Asker[Found]) -> None:
        """Remove an asker. The thread ends with the last one, and its question is cut."""
        asker.gone = True
        with self._lock:
            self._drop(asker)
            over = self.over
        if over:
            self._cut()

    def let_go(self, asker: Asker[Found]) -> None:
        """Leave, for the garbage collector: takes no lock."""
        asker.gone = True
        if all(one.gone for one in self.askers):
            self._cut()
        else:
            self._due.set()

    def _drop(self, *leaving: Asker[Found]) -> None:
        """Forget askers; holding ``_lock``."""
        self.askers = tuple(one for one in self.askers if one not in leaving)
        if not self.askers and not self.over:
            self.over = True
            _polls.pop(self._key, None)

    def _cut(self) -> None:
        self._is_cut = True
        self.client.cut()
        self._due.set()

    def _after_fork(self) -> None:
        # A greenlet that was copied into the child ends there.
        self.over = True
        self.askers = ()
        _polls.pop(self._key, None)

    def hurry(self, pause: float) -> None:
        """Ask now, unless the last question is younger than ``pause`` seconds or under way."""
        if self._runtime.now() - self.asked_at >= pause:
            self._hurried = True
            self._due.set()

    # -- the poll thread ---------------------------------------------------------------------

    def _spawn(self) -> Task:
        try:
            return self._runtime.spawn(f"nsq-lookup {self.url}", self._run)
        except RuntimeError as error:
            raise NoThread(f"{self.url}: {error}") from error

    def _run(self) -> None:
        troubles().uses(self.url, self, self._question.what)
        try:
            while self._goes_on():
                self._step()
        except BaseException:
            # A gevent.Timeout out of an observer's hook, say. Another thread goes on.
            if not self._is_replaced():
                self._end()
            raise
        self._end()

    def _is_replaced(self) -> bool:
        """Start another thread, unless it is over. Takes no lock in a forked child."""
        if self.over:
            return False
        with self._lock:
            if not self.over:
                self.task = None
                self.task = self._spawn()
            return not self.over

    def _goes_on(self) -> bool:
        with self._lock:
            if any(one.gone for one in self.askers):
                self._drop(*(one for one in self.askers if one.gone))
            return not self.over

    def _end(self) -> None:
        self.client.close()
        troubles().leaves(self, self.url)

    def _step(self) -> None:
        """Ask, tell newcomers the known answer, or wait."""
        now = self._runtime.now()
        new = [one for one in self.askers if not one.is_told]
        if new:
            self._pauses.begin(now)
        is_fresh = self._answer is not None and now - self.asked_at < _FRESH_SECONDS
        if self._hurried or now >= self._next_at or (new and not is_fresh):
            self._hurried = False
            self.asked_at, self.came_round_at = math.inf, now
            try:
                self._ask()
            finally:
                self.asked_at = self._runtime.now()
                self._next_at = self.asked_at + self._pause()
        elif new:
            try:
                self._tell_found(new)
            finally:
                self._next_at = min(self._next_at, self._runtime.now() + self._pause())
        else:
            self._due.wait(self._next_at - now)
            self._due.clear()

    def _pause(self) -> float:
        quickest = min(self.askers, key=lambda one: one.interval, default=None)
        if quickest is None:
            return 0.0
        interval, jitter = quickest.interval, quickest.jitter
        now = self._runtime.now()
        return self._pauses.next(now, interval, jitter, **self._situation())

    def _situation(self) -> dict[str, bool]:
        askers = self.askers
        return {
            "searching": any(one.searching() for one in askers),
            "alone": any(one.alone() for one in askers),
        }

    def _ask(self) -> None:
        try:
            if self._is_cut and not self.over:
                # The last asker was forgotten while a new one came.
                self.client.close()
                self.client, self._is_cut = self._new_client(), False
            answer = self._lookup()
        except NSQError as error:
            # A question that was cut at the end is no failure to report.
            if not self._is_cut:
                self._failed(error)
        except BaseException as error:
            # A user's session may raise anything, and discovery would end with this thread.
            if ends_worker(error):
                raise
            if not isinstance(error, Exception):
                error = RuntimeError(f"the session raised {repr_of(error)}")
            self._failed(error)
        else:
            self._answered(answer)

    def _answered(self, answer: set[Found]) -> None:
        recovered = self.failures > 0
        self.failures = 0
        self.error = None
        self._answer = answer
        self._pauses.answered(self._runtime.now(), listed=bool(answer))
        askers = self.askers
        for one in askers:
            one.lists = bool(answer)
        try:
            self._tell_found(askers)
        finally:
            if recovered:
                self._tell_recovered()
                over = [one for one in askers if one.fails]
                for one in over:
                    one.fails = False
                self._each(over, lambda one: one.call(self._latch(), one.changed, self.url, None))

    def _tell_found(self, askers: list[Asker[Found]] | tuple[Asker[Found], ...]) -> None:
        answer = self._answer
        assert answer is not None

        def tell(one: Asker[Found]) -> None:
            one.is_told, one.lists = True, bool(answer)
            one.call(self._latch(), one.found, one, set(answer))
            if one.gone:
                # The answer may have crossed with the asker's end.
                one.found(one, set())

        self._each(askers, tell)

    def _latch(self) -> Latch:
        return self._runtime.latch()

    @staticmethod
    def _each(
        askers: list[Asker[Found]] | tuple[Asker[Found], ...], tell: Callable[[Asker[Found]], None]
    ) -> None:
        """Tell all askers, whatever a hook of one raises; then raise the first error."""
        first: BaseException | None = None
        for one in askers:
            try:
                tell(one)
            except BaseException as error:  # noqa: BLE001 - it is raised when all know
                first = first or error
        if first is not None:
            raise first

    def _failed(self, error: Exception) -> None:
        # Logged as one trouble: a broken server may send a new text each time.
        self.failures += 1
        self.error = error
        self._answer = None
        self._pauses.failed()
        askers = self.askers
        new = [one for one in askers if not one.fails]
        for one in askers:
            one.is_told = one.fails = True
        tell = troubles().began(self.url, AWAY)
        if tell is not None:
            expected = isinstance(error, NSQError)
            interval = min((one.interval for one in askers), default=0.0)
            pause = self._pauses.usual(self._runtime.now(), interval, **self._situation())
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "lookup of %s at %s failed: %s; it is asked again in about %s%s%s",
                self._question.what,
                self.url,
                error if expected else repr_of(error),
                duration(pause),
                used_by(tell, "lookups"),
                more(tell),
                exc_info=None if expected else error,
            )
        self._each(new, lambda one: one.call(self._latch(), one.changed, self.url, error))

    def _tell_recovered(self) -> None:
        over = troubles().ended(self.url)
        if over is not None:
            log.warning(
                "lookup of %s works again at %s after %s%s",
                self._question.what,
                self.url,
                duration(over.seconds),
                used_by(over, "lookups"),
            )

    def _lookup(self) -> set[Found]:
        try:
            answer = self._question.ask(self.client)
        except HTTPError as error:
            # Any other 404 comes from something that is not nsqlookupd.
            if error.code != "TOPIC_NOT_FOUND":
                raise
            # The normal state before the first publish.
            log.log(
                logging.DEBUG if self.unknown else logging.INFO,
                "%s does not know topic %s yet",
                self.url,
                self._question.what,
            )
            self.unknown = True
            return set()
        self.unknown = False
        return answer


def share(
    key: Hashable,
    question: Question[Found],
    new_client: Callable[[], LookupdHTTP],
    runtime: Runtime,
    asker: Asker[Found],
) -> SharedPoll[Found]:
    """Return this process's poll for ``question`` there, with ``asker`` in it.

    ``key`` says which nsqlookupd is asked, and how. Runtimes of one kin share. Raises as
    ``new_client``, and NoThread if no thread can be started.
    """
    whole = (os.getpid(), runtime.kin, question, key)
    while True:
        poll = _polls.get(whole)
        if poll is None:
            new = SharedPoll(whole, question, new_client, runtime)
            poll = _polls.setdefault(whole, new)
            if poll is not new:
                new.client.close()
        if poll.take(asker):
            return poll
