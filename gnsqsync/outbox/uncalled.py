"""Failures before the call of a handler, such as at the begin of its transaction.

They cost a message no attempt, so a database may be away. Knows handlers. Knows no database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from gnsqsync.message import Discard, Reject, Requeue, Uncalled

__all__ = ["unless_called"]

P = ParamSpec("P")


@contextmanager
def unless_called(function: Callable[P, object]) -> Iterator[Callable[P, object]]:
    """Yield the function of a handler. The block calls it once.

    Raises:
        Uncalled: The block raised an exception before it called the function. Reject, Discard and
            Requeue are raised unchanged, because they decide about the message themselves.
    """
    has_begun = False

    def call(*args: P.args, **keywords: P.kwargs) -> object:
        nonlocal has_begun
        has_begun = True
        return function(*args, **keywords)

    try:
        yield call
    except (Discard, Reject, Requeue):
        raise
    except Exception as error:
        if has_begun:
            raise
        raise Uncalled from error
