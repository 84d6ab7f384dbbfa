"""A guard around calls of a monitoring service: an error is logged, and the message goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from gnsqsync.foreign import ends_worker

__all__ = ["Guard"]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("gnsqsync.contrib")


class Guard:
    """A caller of functions that may fail. Only the first failure is an ERROR in the log."""

    def __init__(self, service: str) -> None:
        self._service = service
        # True once a failure is logged.
        self._told = False

    def __call__(self, call: Callable[..., T], *args: Any) -> T | None:
        """Return the result of the call, or None if it raised."""
        try:
            return call(*args)
        except BaseException as error:
            # The user's hooks run in the call, and may raise any exception.
            if ends_worker(error):
                raise
            if not self._told:
                self._told = True
                log.exception("%s failed; messages go on without it (told once)", self._service)
            return None
