"""Log lines in the form of the Go programs, on stderr. Does not know what is logged."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
_WORDS = {1: "DEBUG", 2: "INFO", 3: "WARNING", 4: "ERROR", 5: "FATAL"}


class Log:
    """A log of lines ``<prefix>2026/11/20 20:00:00.000000 INFO: text`` from a level on.

    ``level`` is a key of LEVELS and may change at any time (PUT /config/log_level). ``stream`` None
    means sys.stderr at the time of the call. Arguments are formatted with % only if the line is
    written.
    """

    def __init__(self, prefix: str, level: str = "info", stream: TextIO | None = None) -> None:
        self.prefix = prefix
        self.level = level
        self._stream = stream

    def debug(self, text: str, *args: object) -> None:
        self._write(1, text, args)

    def info(self, text: str, *args: object) -> None:
        self._write(2, text, args)

    def warning(self, text: str, *args: object) -> None:
        self._write(3, text, args)

    def error(self, text: str, *args: object) -> None:
        self._write(4, text, args)

    def fatal(self, text: str, *args: object) -> None:
        """Log a line. This does not end the process."""
        self._write(5, text, args)

    def _write(self, level: int, text: str, args: tuple[object, ...]) -> None:
        if level < LEVELS[self.level]:
            return
        stream = self._stream or sys.stderr
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        now = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))
        line = text % args if args else text
        try:
            stream.write(f"{self.prefix}{now}.{nanoseconds // 1000:06} {_WORDS[level]}: {line}\n")
            stream.flush()
        except (OSError, ValueError):
            # A server goes on without its log if stderr has no reader any more.
            return
