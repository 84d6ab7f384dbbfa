"""Meaning of a handler's exceptions: retry, dead letter or discard, and backoff or not.

Knows exceptions. Must not know a message or a connection.

``of`` returns the fate of the message, and ``backs_off`` tells if the failure counts for the
backoff.

Surprise: an exception that is no Exception, such as asyncio.CancelledError, always means a retry. A
filter of the user that raises means that the failure counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Literal, TypeAlias

from gnsqsync.errors import ConfigError
from gnsqsync.foreign import ends_worker, repr_of
from gnsqsync.message import Discard, Reject, Requeue
from gnsqsync.options import check_handler

__all__ = ["BackoffFilter", "BackoffOption", "Exceptions", "Verdict", "Verdicts"]

Exceptions: TypeAlias = type[Exception] | Sequence[type[Exception]]
BackoffFilter: TypeAlias = Callable[[BaseException], bool]
BackoffOption: TypeAlias = bool | BackoffFilter | Literal["every_failure"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


class Verdict(Enum):
    """Fate of a message whose handler raised."""

    RETRY = "retry_on"
    REJECT = "reject_on"
    DISCARD = "discard_on"


class Verdicts:
    """Rules of one Reader for exceptions.

    The class that is nearest in the exception's ``__mro__`` decides. An exception in no list means
    retry, or reject if ``retry_on`` is given.
    """

    def __init__(
        self,
        retry_on: Exceptions | None,
        reject_on: Exceptions,
        discard_on: Exceptions,
        backoff: BackoffOption,
    ) -> None:
        """Raises ConfigError for a value that is no exception class, or stands in two lists."""
        self._by_class: dict[type[BaseException], Verdict] = {Reject: Verdict.REJECT}
        self._by_class[Discard] = Verdict.DISCARD
        self._by_class[Requeue] = Verdict.RETRY
        self._other = Verdict.RETRY if retry_on is None else Verdict.REJECT
        for verdict, given in (
            (Verdict.RETRY, () if retry_on is None else retry_on),
            (Verdict.REJECT, reject_on),
            (Verdict.DISCARD, discard_on),
        ):
            for one in _classes(verdict.value, given):
                before = self._by_class.setdefault(one, verdict)
                if before is not verdict:
                    raise ConfigError(
                        f"{one.__qualname__} is in {verdict.value}, and means {before.value}"
                        " already; leave it in one of them"
                    )
        if backoff == "every_failure":
            backoff = True
        elif isinstance(backoff, str):
            raise ConfigError(
                f"backoff is {backoff!r}; it must be True, False, 'every_failure' or a function of"
                " the exception"
            )
        elif not isinstance(backoff, bool):
            check_handler("backoff", backoff, "the exception")
        self._backoff: bool | BackoffFilter = backoff

    def of(self, error: BaseException) -> Verdict:
        if not isinstance(error, Exception):
            return Verdict.RETRY  # asyncio.CancelledError, say; the lists name Exceptions
        by_class = self._by_class
        for one in type(error).__mro__:
            if one in by_class:
                return by_class[one]
        return self._other

    def backs_off(self, error: BaseException) -> bool:
        """Return True if this failure counts for the backoff, or if the user's filter raised."""
        if isinstance(self._backoff, bool):
            return self._backoff
        try:
            return bool(self._backoff(error))
        except BaseException as failure:
            # The filter is the user's code, and may raise anything.
            if ends_worker(failure):
                raise
            log.exception("backoff failed on %s, which counts as a failure", repr_of(error))
            return True


def _classes(name: str, given: Exceptions) -> Sequence[type[Exception]]:
    members = given if isinstance(given, (list, tuple, set, frozenset)) else (given,)
    for one in members:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise ConfigError(
                f"{name} is {given!r}; it must be an exception class or a list of them, each"
                " a subclass of Exception"
            )
    return [*members]
