"""Rows of an outbox whose message nsqd may have, although the publish was not confirmed.

The mark is the beginning of a row's ``last_error``, so every version can read and write the row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from gnsqsync.errors import OutcomeUnknown
from gnsqsync.stats import counted

__all__ = ["IN_DOUBT", "error_text", "tell_canceled", "tell_moved", "texts"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")

# Beginning of ``last_error`` of a row in doubt.
IN_DOUBT = "nsqd may have it: "


class _Row(Protocol):
    @property
    def in_doubt(self) -> bool: ...


_R = TypeVar("_R", bound=_Row)


def error_text(error: BaseException) -> str:
    """Return the text of a failed publish for ``last_error``."""
    return f"{IN_DOUBT}{error}" if isinstance(error, OutcomeUnknown) else str(error)


def texts(rows: Iterable[_R], error: str) -> Iterator[tuple[str, Sequence[_R]]]:
    """Yield the rows with their new ``last_error``. A row in doubt keeps its mark."""
    given = list(rows)
    if error.startswith(IN_DOUBT):
        yield error, given
        return
    for text, is_marked in ((error, False), (f"{IN_DOUBT}{error}", True)):
        if some := [row for row in given if row.in_doubt is is_marked]:
            yield text, some


def tell_canceled(key: str, count: int) -> None:
    """Log that canceled rows may still be delivered."""
    if count:
        log.warning(
            "the outbox no longer has %s with the key %s, but nsqd may have it: a publish was not"
            " confirmed; cancel() does not count it",
            counted(count, "message"),
            key,
        )


def tell_moved(key: str, count: int) -> None:
    """Log that the messages of moved rows may come twice."""
    if count:
        log.warning(
            "%s with the key %s may come twice, now and at the new time: a publish was not"
            " confirmed",
            counted(count, "message"),
            key,
        )
