"""The loggers of this package, which no set-up of logging disables once a program consumes.

``dictConfig()`` and ``fileConfig()`` disable each logger that exists and that they do not name,
unless ``disable_existing_loggers`` is False. A worker would then hide its failures.

Knows logging; knows no handler and no format.
"""

from __future__ import annotations

import logging

__all__ = ["ROOT", "keep_enabled", "own_loggers"]

ROOT = "gnsqsync"


class _Kept:
    """A Logger with this class in front ignores that it is disabled.

    A level, or a handler, still chooses what is shown.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass


def own_loggers() -> list[logging.Logger]:
    """Return the loggers of this package that exist, the one above the others first."""
    found = [logging.getLogger(ROOT)]
    for name, logger in sorted([*logging.root.manager.loggerDict.items()], key=lambda one: one[0]):
        if name.startswith(f"{ROOT}.") and isinstance(logger, logging.Logger):
            found.append(logger)
    return found


def keep_enabled() -> None:
    """Enable the loggers of this package, and let nothing disable them again.

    A module of the user may set up logging at any time: at its import, or in a handler that runs
    Alembic. So enabling them once would not do.
    """
    for logger in own_loggers():
        if not isinstance(logger, _Kept):
            cls = type(logger)
            # A program may have a class of its own, by logging.setLoggerClass().
            logger.__class__ = type(cls.__name__, (_Kept, cls), {})
