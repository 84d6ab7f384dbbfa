"""A client of one nsqd or nsqlookupd that keeps answers for a second. Failures are in Go's words.

Knows requests, timeouts and the cache of one server. Does not know the meaning of an answer.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gnsqsync.daemon.secrets import shown
from gnsqsync.errors import NSQError
from gnsqsync.http.json_memory import TooLarge, parse_json
from gnsqsync.http.transport import HTTPClient, HTTPKeywords

__all__ = ["KEPT", "Failed", "Upstream", "failures"]

# Seconds for which an answer or a failure is returned to others who ask the same.
KEPT = 1.0
# The answer of a server that does not have the topic, the channel, or the nsqd.
_NOT_THERE = re.compile(r'got response 404 [^"]*".*_NOT_FOUND')


# Bytes of memory for each object of an answer. nsqadmin makes an object with all keys, and a row.
_PER_OBJECT = 4000
# Upper bound of a server's own text in a warning, in bytes.
_MOST_WORDS = 1000


class Failed(NSQError):
    """A server gave no usable answer. The text is for the warning."""


def failures(errors: Sequence[str]) -> list[str]:
    """Return the texts without those of a 404, which is an answer and no failure."""
    return [text for text in errors if not _NOT_THERE.match(text)]


class _NoAnswer(Failed):
    """The server could not be reached, or was silent. ``why`` does not contain the request."""

    def __init__(self, asked: str, why: str) -> None:
        super().__init__(f"{asked}: {why}")
        self.why = why


class _Kept(NamedTuple):
    until: float
    writes: int
    outcome: Any


class Upstream(HTTPClient):
    """A client of one server, with one request at a time.

    Args:
        address: ``host:port``.
        log: Gets the URL before each request.
        timeout: Seconds for which the server may be silent.
        clock: Returns monotonic seconds.
        options: Further arguments of HTTPClient.

    Threads:
        Any thread may call. Threads that ask the same share one request.
    """

    def __init__(
        self,
        address: str,
        log: Callable[[str], None],
        *,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        keywords: HTTPKeywords = {"connect_timeout": 2.0, **options}  # type: ignore[typeddict-item]
        super().__init__(f"http://{address}", timeout=timeout, **keywords)
        self.address: str = address
        # The address without a password, for texts.
        self.shown: str = shown(address)
        self._log = log
        self._clock = clock
        # Held during a request, so that there is one request at a time.
        self._turn = threading.Lock()
        # Answers and failures by path and parameters. Replaced as a whole, so reads need no lock.
        self._kept: dict[str, _Kept] = {}
        # The failure of a request without an answer. Until its time no other request is tried.
        self._no_answer: _Kept | None = None
        # Number of changes. Answers that were kept before the last change are not used.
        self._writes = 0

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Return the object that ``path`` answers, at most a second old. Do not change it.

        Raises Failed, also for a failure of the last second. After a request without an answer,
        each further request fails for a second, or for the time that the request took. So a page
        with several requests waits once.
        """
        asked = f"{path}?{urlencode(params)}" if params else path
        outcome = self._fresh(asked)
        if outcome is None:
            with self._turn:
                # Another thread may have asked the same while this one waited for the lock.
                outcome = self._fresh(asked) or self._refusal(asked)
                outcome = outcome or self._poll(path, params, asked)
        if isinstance(outcome, str):
            raise Failed(outcome)
        found: dict[str, Any] = outcome[0]
        return found

    def post(self, path: str, params: dict[str, str], body: bytes | None = None) -> None:
        """Change the server's state. Raises Failed. Earlier answers are not used afterwards."""
        self.forget()
        try:
            with self._turn:
                self._exchanged("POST", path, params, body)
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop kept answers, and the answer of a request that is under way."""
        self._writes += 1

    def _fresh(self, asked: str) -> Any:
        kept = self._kept.get(asked)
        if kept is None or kept.writes != self._writes or self._clock() >= kept.until:
            return None
        return kept.outcome

    def _refusal(self, asked: str) -> str | None:
        """Return the failure if the server has just not answered another request, else None."""
        kept = self._no_answer
        if kept is None or kept.writes != self._writes or self._clock() >= kept.until:
            return None
        url = f"http://{self.shown}{asked}"
        return f"Get {_quoted(url)}: {kept.outcome}"

    def _poll(self, path: str, params: dict[str, str], asked: str) -> Any:
        writes = self._writes
        began = self._clock()
        outcome: Any
        try:
            outcome = (self._parsed(self._exchanged("GET", path, params)),)
        except Failed as error:
            outcome = str(error)
            if isinstance(error, _NoAnswer):
                now = self._clock()
                self._no_answer = _Kept(now + max(KEPT, now - began), writes, error.why)
        now = self._clock()
        alive = {key: kept for key, kept in self._kept.items() if kept.until > now}
        self._kept = {**alive, asked: _Kept(now + KEPT, writes, outcome)}
        return outcome

    def _exchanged(
        self, method: str, path: str, params: dict[str, str], body: bytes | None = None
    ) -> bytes:
        query = f"?{urlencode(params)}" if params else ""
        url = f"http://{self.shown}{path}{query}"
        self._log(url)
        answer = self._exchange(method, path, params, body)
        client = None if isinstance(answer, NSQError) else self._https_client(answer)
        if client is not None:
            # An nsqd with --tls-required is asked again by HTTPS, as the Go program does.
            url = f"{shown(client.url)}{path}{query}"
            answer = client._exchange(method, path, params, body)
        if isinstance(answer, NSQError):
            raise _NoAnswer(f"{method.capitalize()} {_quoted(url)}", self._why(answer))
        if answer.status != 200:
            text = answer.content[:_MOST_WORDS].decode("utf-8", "replace")
            raise Failed(f"got response {answer.status} {answer.reason} {_quoted(text)}")
        return answer.content

    def _why(self, error: NSQError) -> str:
        cause = error.__cause__
        if isinstance(cause, ConnectionError) and cause.errno:
            # The text of ``cause`` would repeat the address.
            what = os.strerror(cause.errno).lower()
            if isinstance(cause, ConnectionRefusedError):
                return f"dial tcp {self.shown}: connect: {what}"
            return what
        if isinstance(cause, TimeoutError):
            return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        # The text begins with the request, which the caller adds itself.
        return str(error).rpartition(": ")[2]

    @staticmethod
    def _parsed(content: bytes) -> dict[str, Any]:
        try:
            found = parse_json(content, per_object=_PER_OBJECT, loads=_loads)
            if b"\\ud" in content.lower():
                # Half a pair of surrogates is no character, and could not be encoded for an answer.
                whole = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
                # The first objects are freed before the second ones are made.
                found = None
                found = json.loads(whole)
        except TooLarge as error:
            raise Failed(f"the answer is too large: {error}") from None
        except (ValueError, RecursionError) as error:
            raise Failed(f"the answer is not JSON: {error}") from None
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise Failed(f"the answer is a {type(found).__name__}, not an object")
        return found


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _loads(content: bytes) -> Any:
    return json.loads(content, parse_constant=_refused, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _quoted(text: str) -> str:
    """Return ``text`` in the form of Go's %q."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")
