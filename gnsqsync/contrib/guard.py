"""What a service that watches may raise changes nothing: it is logged, and the message goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Guard"]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("gnsqsync.contrib")


class Guard:
    """Calls that may fail. The first failure is an ERROR with its traceback, the others are not."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._told = False

    def __call__(self, call: Callable[..., T], *args: Any) -> T | None:
        """What the call returns; None when it raised."""
        try:
            return call(*args)
        except Exception:
            if not self._told:
                self._told = True
                log.exception("%s failed; messages go on without it (told once)", self._service)
            return None
