"""Log lines in the form of the Go programs, on stderr. Knows nothing of what is logged."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
_WORDS = {1: "DEBUG", 2: "INFO", 3: "WARNING", 4: "ERROR", 5: "FATAL"}


class Log:
    """Writes ``<prefix>2026/11/20 20:00:00.000000 INFO: text`` when the level is high enough.

    ``level`` is a key of LEVELS and may be changed at any time (PUT /config/log_level). ``stream``
    None means sys.stderr at the time of the call. Arguments are put into the text with %, and
    only when the line is written.
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
        """Like the others: it does not end the process."""
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
            # Nobody reads stderr any more: a server goes on without its log.
            return
