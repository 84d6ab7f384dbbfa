"""Client of nsqlookupd over a user's session that was made for it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

from gnsqsync.errors import ConfigError
from gnsqsync.http.clients import LookupdHTTP
from gnsqsync.http.limits import watch_session
from gnsqsync.http.transport import Line
from gnsqsync.runtime.call import Call

__all__ = ["SessionLookupd"]


class SessionLookupd(LookupdHTTP):
    """Client that uses a session from ``new_session``, and closes the session at its end.

    Raises ConfigError if ``new_session`` returns anything else.
    """

    def __init__(
        self, url: str, new_session: Callable[[], requests.Session], **options: Any
    ) -> None:
        session = new_session()
        if not isinstance(session, requests.Session):
            raise ConfigError(
                f"lookupd_session returned a {type(session).__name__};"
                " it must return a new requests.Session"
            )
        super().__init__(url, session=session, **options)
        self._made = session
        self._call = Call()
        watch_session(session, self._call)

    def _take_line(self) -> Line:
        return Line(self._made, self._call)

    def close(self) -> None:
        super().close()
        self._made.close()
