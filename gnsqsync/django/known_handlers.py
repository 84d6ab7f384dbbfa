"""The handlers of the project: functions with ``@nsq_handler``, and those of other apps.

Knows handlers and their claims; knows no check and no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from gnsqsync.django.handlers import Handler, all_handlers
from gnsqsync.errors import ConfigError
from gnsqsync.process.handler_claims import Claim

__all__ = ["Known", "claims", "known_handlers", "more_known_handlers"]


@dataclass(frozen=True)
class Known:
    """A handler, and its place in the project."""

    handler: Handler
    # Module and function, or the setting that makes the handler.
    where: str
    # Handlers of one owner that is not None handle a message alike.
    owner: object = None


# Functions of apps with handlers that are no functions with @nsq_handler.
more_known_handlers: list[Callable[[], Iterable[Known]]] = []


def known_handlers() -> list[Known]:
    """Return the handlers of all commands, by which the project's claims are compared."""
    found = [Known(handler, handler.where) for handler in all_handlers()]
    return [*found, *(known for more in more_known_handlers for known in more())]


def claims() -> list[Claim]:
    """Return the claims of the project. A handler without a valid entry of GNSQSYNC has none."""
    found = []
    for known in known_handlers():
        try:
            found.append(known.handler.claim(known.where, known.owner))
        except (ConfigError, ImproperlyConfigured):
            continue  # The system check and the handler's own start say so.
    return found
