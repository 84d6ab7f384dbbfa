"""Lock that each runtime makes for a few instructions: reentrant and native.

Surprise: Python 3.14 may run a signal handler after ``with`` has taken a lock and before its block
begins. A handler that raises there leaves the lock taken for good
(https://github.com/python/cpython/issues/148874). ``new_mutex`` makes a lock that is given back
then. Older Pythons run no handler there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gnsqsync.runtime import base, world

__all__ = ["new_mutex"]

_native: Any = world.native("_thread", "RLock")


class _Mutex(_native):  # type: ignore[misc]
    """A native lock that stays free if an exception strikes while it is taken."""

    __slots__ = ()

    def __enter__(self) -> None:
        # Python runs no handler between the return of this function and the block.
        try:
            self.acquire()
        except BaseException:
            # A signal struck after the lock was taken, or while this thread waited for it.
            if self._is_owned():
                self.release()
            raise


new_mutex: Callable[[], base.Mutex] = _Mutex if sys.version_info >= (3, 14) else _native
