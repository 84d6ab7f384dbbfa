"""The log lines that a command shows, whatever logging its program has set up.

A program's levels, handlers and formats are kept. This module adds missing parts: a format, and a
place for warnings that no handler takes.

Knows logging, and Python's last resort: the handler that prints warnings of loggers without any
handler to standard error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gnsqsync.runtime.loggers import ROOT, keep_enabled, own_loggers

__all__ = [
    "Lines",
    "disabled_loggers",
    "heard",
    "is_readable",
    "make_readable",
    "readable_log",
    "takes_warnings",
]


class Lines(logging.Formatter):
    """A format of time, level, logger and text. Python's last resort prints the text alone."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")


class _OwnLines(Lines):
    """A format with time and level for lines of this package. Others keep Python's format."""

    _plain = logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        if record.name == ROOT or record.name.startswith(f"{ROOT}."):
            return super().format(record)
        return self._plain.format(record)


def is_readable() -> bool:
    """Return True while a command of ours runs, which prints warnings with time and level."""
    return logging.lastResort is not None and isinstance(logging.lastResort.formatter, Lines)


def make_readable() -> None:
    """Print warnings that no handler takes with time and level, from now on.

    Do nothing if the program has set ``logging.lastResort`` to None, because it wants silence.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Lines())


@contextmanager
def readable_log() -> Iterator[None]:
    """Call ``make_readable()``, and undo it at the end, for a command that owns its process."""
    handler = logging.lastResort
    before = None if handler is None else handler.formatter
    make_readable()
    try:
        yield
    finally:
        if handler is not None:
            handler.setFormatter(before)


@contextmanager
def heard(about: str) -> Iterator[None]:
    """Show the failures of a command that runs until a signal, whatever its program set up.

    Enter it after the program's modules are imported, because they may set up logging. ``about``:
    the logger whose warnings are the failures.

    * Loggers that ``disable_existing_loggers`` has disabled are enabled.
    * A handler that writes to a stream and has no format shows time and level of our lines.
    * Warnings that no handler takes go to standard error. If the program chose silence, by a level,
      a NullHandler for this package, or a ``logging.lastResort`` of None, nothing is added, and one
      line says so.
    """
    keep_enabled()
    loggers = own_loggers()
    bare = [one for one in _handlers(loggers) if _has_no_format(one)]
    for handler in bare:
        handler.setFormatter(_OwnLines())
    printer = logging.StreamHandler(sys.stderr)
    printer.setLevel(logging.WARNING)
    printer.setFormatter(Lines())
    filled = _fill(loggers, printer)
    if ROOT in {logger.name for logger in filled}:
        log = logging.getLogger(ROOT)
        log.warning(
            "no handler of this program's logging takes warnings of %s: they are printed here", ROOT
        )
    _tell_of_silence(logging.getLogger(about), printer)
    try:
        yield
    finally:
        for logger in filled:
            logger.removeHandler(printer)
        for handler in bare:
            handler.setFormatter(None)


def disabled_loggers() -> list[str]:
    """Return the names of the loggers of this package that are disabled."""
    return [logger.name for logger in own_loggers() if logger.disabled]


def takes_warnings(logger: logging.Logger) -> bool:
    """Return True if a handler, or Python's last resort, shows a warning of this logger."""
    handlers = [*_handlers([logger])]
    return not handlers or any(_takes_warnings(handler, logger) for handler in handlers)


def _fill(loggers: list[logging.Logger], printer: logging.Handler) -> list[logging.Logger]:
    """Give ``printer`` to the loggers whose warnings no handler takes, and return them."""
    filled = []
    if logging.lastResort is not None:
        for logger in loggers:
            # The first logger is the parent of the others, so most of them need no own printer.
            if _silence_of(logger) is None and not takes_warnings(logger):
                logger.addHandler(printer)
                filled.append(logger)
    return filled


def _silence_of(logger: logging.Logger) -> str | None:
    """Return how the program chose silence for warnings of this logger, or None.

    A NullHandler of another logger, such as the root, is no choice for this package.
    """
    if logger.manager.disable >= logging.WARNING:
        return f"logging.disable({logging.getLevelName(logger.manager.disable)})"
    if not logger.isEnabledFor(logging.WARNING):
        return f"the level {logging.getLevelName(logger.getEffectiveLevel())}"
    if logging.lastResort is None and not logger.hasHandlers():
        return "logging.lastResort, which is None,"
    if takes_warnings(logger):
        return None
    own = [*logging.getLogger(ROOT).handlers, *logger.handlers]
    return "a NullHandler" if any(isinstance(one, logging.NullHandler) for one in own) else None


def _tell_of_silence(logger: logging.Logger, printer: logging.Handler) -> None:
    """Print one line if warnings of this logger are not shown, with the reason."""
    reason = _silence_of(logger)
    if reason is not None:
        # This logger has its own manager, so that not even logging.disable() silences it.
        log = logging.Logger(logger.name)
        log.manager = logging.Manager(logging.RootLogger(logging.WARNING))
        log.addHandler(printer)
        log.warning("failures are not shown: %s hides the warnings of %s", reason, logger.name)


def _handlers(loggers: list[logging.Logger]) -> Iterator[logging.Handler]:
    """Yield each handler that gets lines of these loggers, once."""
    seen: dict[logging.Handler, None] = {}
    for logger in loggers:
        above: logging.Logger | None = logger
        while above is not None:
            seen.update(dict.fromkeys(above.handlers))
            above = above.parent if above.propagate else None
    yield from seen


def _has_no_format(handler: logging.Handler) -> bool:
    return (
        isinstance(handler, logging.StreamHandler)
        and handler.formatter is None
        and type(handler).format is logging.Handler.format
    )


def _takes_warnings(handler: logging.Handler, logger: logging.Logger) -> bool:
    if isinstance(handler, logging.NullHandler) or handler.level > logging.WARNING:
        return False
    text = "a line that is not shown: it asks the filters"
    record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (), None)
    try:
        return bool(handler.filter(record))
    except Exception:  # noqa: BLE001 - a filter of the user's, which may miss fields of its own
        return True
