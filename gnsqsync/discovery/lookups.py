"""The nsqlookupds to ask and how to ask them, checked where the user gives the options."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError
from gnsqsync.options import ConnectionOptions, check_duration, https_options
from gnsqsync.runtime import Runtime

if TYPE_CHECKING:
    import requests

    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["Lookups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """The nsqlookupds to ask and how to ask them. ConfigError if options do not fit together."""

    # URLs, which may contain a user and a password.
    urls: tuple[str, ...] = field(repr=False)
    poll_interval: float
    poll_jitter: float
    authorization: str | None = field(repr=False)
    new_session: Callable[[], requests.Session] | None
    options: ConnectionOptions = field(repr=False)

    def __post_init__(self) -> None:
        check_duration("lookupd_poll_interval", self.poll_interval, 0.01, 3600)
        jitter = self.poll_jitter
        if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
            raise ConfigError(f"lookupd_poll_jitter is {jitter!r}; it must be a number, 0 to 1")
        if self.new_session is not None and not callable(self.new_session):
            raise ConfigError(
                f"lookupd_session is a {type(self.new_session).__name__}; it must be a function"
                " that takes nothing and returns a new requests.Session, as each thread needs its"
                " own"
            )
        for url in self.urls:
            self._checked(url)

    @property
    def shown(self) -> tuple[str, ...]:
        """The URLs without user info and query."""
        return tuple(self._checked(url).url for url in self.urls)

    def key_of(self, url: str) -> Hashable:
        """Return the key that two Lookups must share to share a client: the URL, and the options.

        Two functions ``new_session`` are equal if they are the same object.
        """
        options = self.options
        return (
            url,
            self.authorization,
            id(self.new_session) if self.new_session is not None else None,
            options.tls_ca_file,
            options.tls_cert_file,
            options.tls_key_file,
            options.tls_verify,
        )

    def client(self, url: str, runtime: Runtime) -> LookupdHTTP:
        """Return a client of one nsqlookupd. ConfigError if the options do not fit.

        An https URL is verified with the TLS files of the connections, if there are any.
        ``new_session`` makes the session of the client, which closes it at its end; the session
        then decides about proxies and TLS.
        """
        if self.new_session is None:
            return self._checked(url, runtime)
        from gnsqsync.http.user_session import SessionLookupd

        return SessionLookupd(url, self.new_session, **self._http_options(runtime))

    def _checked(self, url: str, runtime: Runtime | None = None) -> LookupdHTTP:
        # Imported here, so that a Writer without nsqlookupds loads no requests: gevent wants to
        # patch ssl first. Without the user's session, which a mere check would never close.
        from gnsqsync.http.clients import LookupdHTTP

        return LookupdHTTP(url, **self._http_options(runtime))

    def _http_options(self, runtime: Runtime | None) -> dict[str, Any]:
        return {
            "authorization": self.authorization,
            "runtime": runtime,
            **https_options(self.options),
        }
