"""Which nsqlookupds are asked and how; and a Writer's: asked for all nsqds, with what result.

Knows how they are asked and which could not be; the pool of nsqds says which one takes a publish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnsqsync.addresses import Address
from gnsqsync.discovery.polling import (
    ALL_NSQDS,
    Discovery,
    Found,
    Question,
    check_new_session,
    check_polling,
    lookupd_client,
)
from gnsqsync.errors import NotSent
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import Latch, Runtime

if TYPE_CHECKING:
    import requests

    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["Finder", "Lookups"]

# How often, in seconds, a publish that finds no nsqd has the nsqlookupds asked again.
_ASK_SECONDS = 1.0
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """Which nsqlookupds are asked, and how. ConfigError for what does not fit together."""

    # They may have a user and a password.
    urls: tuple[str, ...] = field(repr=False)
    poll_interval: float
    poll_jitter: float
    authorization: str | None = field(repr=False)
    new_session: Callable[[], requests.Session] | None
    options: ConnectionOptions = field(repr=False)

    def __post_init__(self) -> None:
        check_polling(self.poll_interval, self.poll_jitter)
        check_new_session(self.new_session)
        for url in self.urls:
            self._checked(url)

    @property
    def shown(self) -> tuple[str, ...]:
        """The URLs without user info and query."""
        return tuple(self._checked(url).url for url in self.urls)

    def _checked(self, url: str) -> LookupdHTTP:
        # Without a session: nobody closes this one.
        return lookupd_client(url, self.authorization, self.options, None)

    def discovery(
        self,
        question: Question[Found],
        found: Callable[[Hashable, set[Found]], None],
        changed: Callable[[str, Exception | None], None],
        runtime: Runtime,
    ) -> Discovery[Found]:
        """Ready to ask them; ``found`` and ``changed`` as of Discovery."""
        return Discovery(
            question,
            self.urls,
            found,
            changed,
            runtime,
            interval=self.poll_interval,
            jitter=self.poll_jitter,
            rng=random.Random(),
            client=lambda url: lookupd_client(
                url, self.authorization, self.options, runtime, self.new_session
            ),
        )


class Finder:
    """Asks for the nsqds of a cluster from ``start()`` on, on a thread for each nsqlookupd.

    ``found(source, addresses)`` is called with each answer, by the thread that asked, and so is
    ``changed(url, error)`` when an nsqlookupd begins to fail or, with None, works again. Without
    URLs there is no thread, and nothing to wait for. ``_failures`` is a dict of which single
    items are set and taken.
    """

    def __init__(
        self,
        lookups: Lookups,
        runtime: Runtime,
        found: Callable[[Hashable, set[Address]], None],
        changed: Callable[[str, Exception | None], None],
    ) -> None:
        self._urls = lookups.urls
        self._now = runtime.now
        self._failures: dict[str, Exception] = {}
        self._tell_changed = changed
        self._discovery = lookups.discovery(ALL_NSQDS, found, self._changed, runtime)

    def start(self) -> None:
        """Begin to ask; NotSent where no thread can be started."""
        try:
            self._discovery.start()
        except RuntimeError as error:
            # Python 3.12 starts none any more when the interpreter ends.
            raise NotSent(f"no thread asks for nsqds: {error}", [error]) from error

    def _changed(self, url: str, error: Exception | None) -> None:
        if error is None:
            self._failures.pop(url, None)
        else:
            self._failures[url] = error
        self._tell_changed(url, error)

    @property
    def asks(self) -> bool:
        """Whether nsqds are looked for, so that more may come."""
        return bool(self._urls)

    @property
    def failures(self) -> list[Exception]:
        """Of the nsqlookupds that cannot be asked now; each names its URL."""
        return list(self._failures.values())

    def wait(self, news: Latch, until: float) -> None:
        """Wait for ``news`` until ``until``; nsqlookupds are asked more often meanwhile."""
        while (left := until - self._now()) > 0:
            if not self.asks:
                news.wait(left)
                return
            self.hurry()
            if news.wait(min(left, _ASK_SECONDS)):
                return

    def hurry(self) -> None:
        """Ask now, if the last time is a second ago: somebody finds no nsqd."""
        self._discovery.hurry()

    def stop(self) -> None:
        """No more questions; ``join()`` then waits for the threads."""
        self._discovery.stop()

    def join(self) -> None:
        self._discovery.join(_JOIN_SECONDS)

    def let_go(self) -> None:
        """By the garbage collector: takes no lock."""
        self._discovery.let_go()
