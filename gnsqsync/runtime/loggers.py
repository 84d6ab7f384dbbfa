"""Loggers of this package, which no set-up of logging can disable once a program consumes.

``dictConfig()`` and ``fileConfig()`` disable each existing logger that they do not name, unless
``disable_existing_loggers`` is False. A worker would then hide its failures.

Knows logging. Must not know a handler of logging or a format.

Surprise: it does not help to enable a logger once, because the user may set up logging later. The
class of the logger is changed, so that it is never disabled.
"""

from __future__ import annotations

import logging

__all__ = ["ROOT", "keep_enabled", "own_loggers"]

# Name of the logger above all loggers of this package.
ROOT = "gnsqsync"


class _Kept:
    """Class in front of a Logger's own class that makes it ignore that it is disabled.

    A level, or a handler of logging, still chooses the lines that are shown.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass


def own_loggers() -> list[logging.Logger]:
    """Return the existing loggers of this package, the topmost first."""
    found = [logging.getLogger(ROOT)]
    for name, logger in sorted([*logging.root.manager.loggerDict.items()], key=lambda one: one[0]):
        if name.startswith(f"{ROOT}.") and isinstance(logger, logging.Logger):
            found.append(logger)
    return found


def keep_enabled() -> None:
    """Enable the loggers of this package for good.

    To enable them once is not enough: a module of the user may set up logging at any time, at its
    import or in a handler that runs Alembic.
    """
    for logger in own_loggers():
        if not isinstance(logger, _Kept):
            cls = type(logger)
            # A program may have its own class, by logging.setLoggerClass().
            logger.__class__ = type(cls.__name__, (_Kept, cls), {})
