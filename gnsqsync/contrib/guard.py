"""What a service that watches may raise changes nothing: it is logged, and the message goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from gnsqsync.foreign import ends_worker

__all__ = ["Guard"]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("gnsqsync.contrib")


class Guard:
    """Calls that may fail. The first failure is an ERROR with its traceback, the others are not."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._told = False

    def __call__(self, call: Callable[..., T], *args: Any) -> T | None:
        """Return what the call returns, or None when it raised."""
        try:
            return call(*args)
        except BaseException as error:
            # Hooks of the user's run in there, and may raise whatever they like.
            if ends_worker(error):
                raise
            if not self._told:
                self._told = True
                log.exception("%s failed; messages go on without it (told once)", self._service)
            return None
