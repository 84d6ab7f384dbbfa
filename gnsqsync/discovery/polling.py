"""The nsqlookupds of one Reader, Writer or TopicGroup. Closes no connection and dials none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic

from gnsqsync.discovery.lookups import Lookups
from gnsqsync.discovery.questions import Found, Question
from gnsqsync.discovery.shared_poll import Asker, SharedPoll, share
from gnsqsync.runtime import Latch, Runtime, Task

__all__ = ["Discovery"]

# Seconds between two questions while a caller waits for the answer.
_HURRY_SECONDS = 1.0
# Seconds that ``join`` waits by default.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Place(Generic[Found]):
    asker: Asker[Found]
    poll: SharedPoll[Found]

    @property
    def must_be_awaited(self) -> bool:
        """True while the asker has left, and the thread is ending or is calling it."""
        task = self.poll.task
        alive = task is not None and task.alive
        return alive and (self.poll.over or self.asker.busy is not None)


class Discovery(Generic[Found]):
    """Asks every nsqlookupd one question again and again, each on a thread of its own.

    All are asked in each round, and the receiver merges their answers, so that a dead or lying one
    delays nothing. Askers of this process with the same question and options share a thread
    (SharedPoll). The poll thread calls ``found(source, answer)`` with each answer, and
    ``changed(url, error)`` when an nsqlookupd begins to fail or, with None, works again. The
    constructor makes a client for each URL of ``lookups``, so that wrong options show before
    anything has begun. ``_lock`` guards the tables of places.
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
        # True once no URL is added and no answer is passed on.
        self._stopped = False
        # Places by URL.
        self._places: dict[str, _Place[Found]] = {}
        # Places that were left and may still be busy.
        self._left: list[_Place[Found]] = []
        # Clients that the constructor made and that no poll uses so far.
        self._clients = {url: lookups.client(url, runtime) for url in lookups.urls}
        runtime.on_fork(self._after_fork)

    def start(self) -> None:
        """Begin to ask all URLs. Raises as ``add()``."""
        for url in self._lookups.urls:
            self.add(url)

    def add(self, url: str) -> None:
        """Ask this nsqlookupd, too, from now on. Nothing changes if it is asked already.

        Raises ConfigError if the options do not fit, and NoThread if no thread can be started.
        """
        if self._stopped or url in self._places:
            return
        # The lambda below must not refer to this Discovery, which the poll may outlive.
        clients, lookups, runtime = self._clients, self._lookups, self._runtime
        asker = Asker(
            lookups.poll_interval,
            lookups.poll_jitter,
            self._tell,
            self._note_change,
            searching=self._is_searching,
            alone=self._is_alone,
        )
        poll = share(
            lookups.key_of(url),
            self._question,
            lambda: clients.pop(url, None) or lookups.client(url, runtime),
            runtime,
            asker,
        )
        spare = clients.pop(url, None)
        if spare is not None:
            spare.close()
        new = _Place(asker, poll)
        with self._lock:
            place = self._places.setdefault(url, new)
            unwanted = self._stopped or place is not new
            if unwanted:
                self._remember(new)
        if unwanted:
            # Left at once: the discovery was stopped, or another thread added the URL first.
            poll.leave(asker)

    def _remember(self, place: _Place[Found]) -> None:
        """Keep a place that was left for ``join()``; holding ``_lock``."""
        self._left = [one for one in self._left if one.must_be_awaited]
        self._left.append(place)

    def _tell(self, source: Hashable, answer: set[Found]) -> None:
        if not self._stopped:
            self._found(source, answer)

    def _note_change(self, url: str, error: Exception | None) -> None:
        if error is not None and self._is_alone():
            # The others failed before, and are asked seldom while one answers.
            self.hurry()
        self._changed(url, error)

    def _is_searching(self) -> bool:
        return not any(place.asker.lists for place in list(self._places.values()))

    def _is_alone(self) -> bool:
        return all(place.asker.fails for place in list(self._places.values()))

    def remove(self, url: str) -> None:
        """Stop asking this nsqlookupd, and forget what it listed.

        A question under way is cut if no other asker shares it. This call does not wait for that;
        ``join()`` does.
        """
        with self._lock:
            place = self._places.pop(url, None)
            if place is not None:
                self._remember(place)
        if place is not None:
            place.poll.leave(place.asker)
            self._tell(place.asker, set())

    @property
    def has_any(self) -> bool:
        """True while any nsqlookupd is asked, so that more may be found."""
        return bool(self._places)

    def stop(self) -> None:
        """Leave all polls. A poll thread ends with its last asker."""
        with self._lock:
            self._stopped = True
            places = list(self._places.values())
        for place in places:
            place.poll.leave(place.asker)

    def let_go(self) -> None:
        """Stop, for the garbage collector: takes no lock. No URL is added after it."""
        self._stopped = True
        for place in list(self._places.values()):
            place.poll.let_go(place.asker)

    def _after_fork(self) -> None:
        self._stopped = True

    def hurry(self, pause: float = _HURRY_SECONDS) -> None:
        """Ask now each nsqlookupd whose last question is ``pause`` seconds old or older."""
        for place in list(self._places.values()):
            place.poll.hurry(pause)

    def wait(self, news: Latch, until: float) -> None:
        """Wait for ``news`` until ``until``. nsqlookupds are asked more often meanwhile."""
        while (left := until - self._runtime.now()) > 0:
            if not self.has_any:
                news.wait(left)
                return
            self.hurry()
            if news.wait(min(left, _HURRY_SECONDS)):
                return

    @property
    def failures(self) -> list[Exception]:
        """Errors of the nsqlookupds that cannot be asked now. Each names its URL."""
        places = list(self._places.values())
        return [error for place in places if (error := place.poll.error) is not None]

    def not_asked(self, seconds: float) -> list[tuple[str, float]]:
        """Return URLs whose thread is ``seconds`` later than between two questions, and the seconds
        since it came round. Takes no lock."""
        now = self._runtime.now()
        usual = self._lookups.poll_interval * (1 + self._lookups.poll_jitter / 2)
        return [
            (url, now - place.poll.came_round_at)
            for url, place in list(self._places.items())
            if now - place.poll.came_round_at > usual + seconds
        ]

    @property
    def tasks(self) -> list[Task]:
        """The present and past poll threads that may be alive."""
        left = [place for place in self._left if place.poll.over]
        places = [*self._places.values(), *left]
        return [task for place in places if (task := place.poll.task) is not None]

    def join(self, timeout: float = _JOIN_SECONDS) -> None:
        """Wait for places that were left: for a thread that ends, or the call that it makes."""
        deadline = self._runtime.now() + timeout
        with self._lock:
            places = [*self._places.values(), *self._left]
        for place in places:
            poll = place.poll
            task, busy = poll.task, place.asker.busy
            if task is None or task.is_current:
                continue
            if poll.over:
                task.join(max(0.0, deadline - self._runtime.now()))
            elif busy is not None:
                busy.wait(max(0.0, deadline - self._runtime.now()))
