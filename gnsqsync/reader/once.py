"""Mark of a handler that commits its work together with a marker of the message.

Knows the mark. Must not know a database or a Reader. The maker of such a handler gives it the
attribute ``MARK``.

Surprise: the mark is looked for behind partials and wrappers, because a Reader often gets a wrapped
handler.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["MARK", "by_header", "handles_once"]

# Name of the attribute. Its value is True if the key of a message is its header ``key``, False if
# the handler finds the key elsewhere.
MARK = "_gnsqsync_once_by_header"


def handles_once(handler: object) -> bool:
    """Return True for a handler that is marked, or that finally calls a marked one."""
    return _mark_of(handler) is not None


def by_header(handler: object) -> bool:
    """Return True for a marked handler that rejects every message without headers."""
    return bool(_mark_of(handler))


def _mark_of(handler: object) -> bool | None:
    called: Any = handler
    while called is not None:
        mark = getattr(called, MARK, None)
        if isinstance(mark, bool):
            return mark
        is_partial = isinstance(called, functools.partial)
        called = called.func if is_partial else getattr(called, "__wrapped__", None)
    return None
