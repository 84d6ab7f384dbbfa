"""Which nsqlookupds are asked, and how; checked where the user says it."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnsqsync.discovery.polling import (
    Discovery,
    Found,
    Question,
    check_new_session,
    check_polling,
    lookupd_client,
)
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import Runtime

if TYPE_CHECKING:
    import requests

    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["Lookups"]


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
        # Without the user's session, which this client would never close.
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
