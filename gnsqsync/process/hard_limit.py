"""The end of a process in which a handler runs for too long: ``--hard-time-limit``.

Knows Readers and ways to end a process. Does not know the supervisor, which starts another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from gnsqsync.errors import ConfigError
from gnsqsync.options import check_duration
from gnsqsync.reader import Reader
from gnsqsync.runtime.watchdog import Watchdog, run_aside
from gnsqsync.stats import SlowHandler

__all__ = ["HardLimit"]

log: logging.Logger = logging.getLogger("gnsqsync.supervisor")

# Checks during the time of the limit. There is at least one check a second.
_LOOKS = 10
# Seconds for the log line. The handler may hold a lock that the log line needs.
_TELL_SECONDS = 5.0


class HardLimit:
    """A watch that ends this process after a handler has run for ``seconds``; None: never.

    ``named``: the Readers with their names. ConfigError if the limit is not allowed, or not above
    the ``time_limit`` of each Reader.
    """

    def __init__(self, seconds: float | None, named: Sequence[tuple[str, Reader]]) -> None:
        if seconds is not None:
            check_duration("--hard-time-limit", seconds, 0.1, 86400)
            for name, reader in named:
                soft = reader.time_limit
                if soft is not None and soft >= seconds:
                    raise ConfigError(
                        f"--hard-time-limit is {seconds:g} s and time_limit of {name} is {soft:g}"
                        " s; give a longer one, so that the handler is interrupted before"
                    )
        self._seconds = seconds
        self._readers = [reader for _, reader in named]

    @contextlib.contextmanager
    def watching(self, *, supervised: bool) -> Iterator[None]:
        """Watch the handlers inside of the block, in the process that runs the Readers.

        ``supervised``: True if a killed process is replaced. Otherwise the process exits with 1.
        """
        if self._seconds is None:
            yield
            return
        with Watchdog(min(1.0, self._seconds / _LOOKS), lambda: self._look(supervised)):
            yield

    def _look(self, supervised: bool) -> None:
        assert self._seconds is not None
        overdue = [one for each in self._readers for one in each.health(self._seconds).handlers]
        if not overdue:
            return

        def tell() -> None:
            for one in overdue:
                log.error("%s", _text(one))
            sys.stdout.flush()
            sys.stderr.flush()

        run_aside(tell)(_TELL_SECONDS)
        if supervised:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)


def _text(slow: SlowHandler) -> str:
    on = f" on message {slow.message}" if slow.message else ""
    return (
        f"{slow.reader}: handler {slow.handler} has run for {slow.seconds:.1f} s{on};"
        f" the hard limit is {slow.limit:g} s, so this process ends."
        f" The handler is at\n{slow.stack}"
    ).rstrip()
