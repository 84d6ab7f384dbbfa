"""One nsqd or nsqlookupd as nsqadmin asks it: an answer is kept for a second, failures are in the
words of the Go program.

Knows requests, time-outs and the cache of one server. Knows nothing of what an answer says.
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

# Seconds that an answer, or a failure, is given to others who ask the same.
KEPT = 1.0
# The answer of a server that does not have the topic, the channel, or the nsqd.
_NOT_THERE = re.compile(r'got response 404 [^"]*".*_NOT_FOUND')


# Bytes of memory for each object of an answer: nsqadmin makes one with all keys of it, and a row.
_PER_OBJECT = 4000
# Bytes of a server's own words in a warning.
_MOST_WORDS = 1000


class Failed(Exception):
    """A server gave no answer that can be used; the text is for the warning."""


def failures(errors: Sequence[str]) -> list[str]:
    """The texts of Failed without the answer that there is no such thing, which is no failure."""
    return [text for text in errors if not _NOT_THERE.match(text)]


class _NoAnswer(Failed):
    """The server could not be reached, or was silent; ``why`` does not name what was asked."""

    def __init__(self, asked: str, why: str) -> None:
        super().__init__(f"{asked}: {why}")
        self.why = why


class _Kept(NamedTuple):
    until: float
    writes: int
    outcome: Any


class Upstream(HTTPClient):
    """One server, which is asked one thing at a time.

    Args:
        address: ``host:port``.
        log: Gets the URL before each request.
        timeout: Seconds that the server may be silent.
        clock: Monotonic seconds.
        options: As of HTTPClient.

    Threads:
        Any thread may call; those that ask the same share one request.
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
        # Without a password, for people.
        self.shown: str = shown(address)
        self._log = log
        self._clock = clock
        # Held while the server is asked: that is what makes it one request at a time.
        self._turn = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        # The reason that the last request had no answer, while nobody shall wait for another one.
        self._no_answer: _Kept | None = None
        self._writes = 0

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """The object that ``path`` answers, at most a second old; do not change it.

        Raises Failed, for a failure of the last second, too. A request that had no answer is a
        failure of all that is asked for the next second, or for as long as it took: a page that
        waits behind it waits once.
        """
        asked = f"{path}?{urlencode(params)}" if params else path
        outcome = self._fresh(asked)
        if outcome is None:
            with self._turn:
                # Whoever had the turn before may have asked the same.
                outcome = self._fresh(asked) or self._refusal(asked)
                outcome = outcome or self._poll(path, params, asked)
        if isinstance(outcome, str):
            raise Failed(outcome)
        found: dict[str, Any] = outcome[0]
        return found

    def post(self, path: str, params: dict[str, str], body: bytes | None = None) -> None:
        """Change something. Raises Failed. What was kept before is not given to anybody after."""
        self.forget()
        try:
            with self._turn:
                self._exchanged("POST", path, params, body)
        finally:
            self.forget()

    def forget(self) -> None:
        """Ask anew from now on, also where a request is under way."""
        self._writes += 1

    def _fresh(self, asked: str) -> Any:
        kept = self._kept.get(asked)
        if kept is None or kept.writes != self._writes or self._clock() >= kept.until:
            return None
        return kept.outcome

    def _refusal(self, asked: str) -> str | None:
        """The failure of a server that has just not answered something else."""
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
            # An nsqd with --tls-required: the same once more, as the Go program does.
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
            # The runtime's own text has the address in it once more.
            what = os.strerror(cause.errno).lower()
            if isinstance(cause, ConnectionRefusedError):
                return f"dial tcp {self.shown}: connect: {what}"
            return what
        if isinstance(cause, TimeoutError):
            return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        # It begins with the request, which the caller has said.
        return str(error).rpartition(": ")[2]

    @staticmethod
    def _parsed(content: bytes) -> dict[str, Any]:
        try:
            found = parse_json(content, per_object=_PER_OBJECT, loads=_loads)
            if b"\\ud" in content.lower():
                # Half a pair of surrogates is no character, and could not be sent to anybody.
                whole = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
                # The first objects go before the second ones come.
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
    """``text`` as Go's %q writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")
