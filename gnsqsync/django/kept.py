"""Caches and task backends of Django, which Django makes at first use and keeps in a context.

Each message has a context of its own. Without this module each message would open its own
connection to Redis or Memcached. Knows no handler and no message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.core.cache import caches

__all__ = ["make_kept"]

log: logging.Logger = logging.getLogger("gnsqsync.django")


def make_kept() -> None:
    """Make all caches and task backends in the caller's context, so that its copies share them.

    A worker has one message at a time, so it needs one of each. Making them connects to nothing.
    """
    for kept in _all_kept():
        try:
            for alias in kept.settings:
                kept[alias]
        except Exception as error:  # noqa: BLE001 - a backend of the project's may raise anything
            # A handler that uses the backend gets the same error.
            log.info("%s cannot be made at the start of a worker: %r", type(kept).__name__, error)


def _all_kept() -> Iterator[Any]:
    yield caches
    try:
        from django.tasks import task_backends
    except ImportError:
        return  # before Django 6
    yield task_backends
