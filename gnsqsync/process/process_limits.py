"""The limits after which a process is replaced: ``--max-messages``, ``--max-memory``.

Knows the counts of Readers and the memory of this process. Stops nothing itself.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from gnsqsync.errors import ConfigError
from gnsqsync.options import check_int
from gnsqsync.reader import Reader

__all__ = ["ProcessLimits", "memory_in_use"]

# Bytes of the unit in which ``max_memory`` is given.
_MEGABYTE = 1024 * 1024
# Largest random share of max_messages that is added, so that processes do not end together.
_JITTER = 0.1


class ProcessLimits:
    """The limits of one process: handled messages, and megabytes of memory. None: no limit.

    ConfigError if a value is not allowed.
    """

    def __init__(self, max_messages: int | None = None, max_memory: int | None = None) -> None:
        if max_messages is not None:
            check_int("--max-messages", max_messages, 1)
        if max_memory is not None:
            check_int("--max-memory", max_memory, 1, unit=" MB")
        self._max_messages = max_messages
        self._max_memory = max_memory

    def check_start(self) -> None:
        """Raise ConfigError if the process is too large before its first message."""
        if self._max_memory is None:
            return
        used = memory_in_use() / _MEGABYTE
        if used >= self._max_memory:
            raise ConfigError(
                f"--max-memory is {self._max_memory} MB, and this process has {used:.0f} MB before"
                " its first message; give more"
            )

    def watch(self, readers: Sequence[Reader]) -> Watch:
        """Return the watch of these Readers. Called in the process that runs them."""
        limit = self._max_messages
        if limit is not None:
            limit += random.Random(os.getpid()).randint(0, int(limit * _JITTER))
        return Watch(readers, limit, self._max_memory)


class Watch:
    """The limits of this process and its Readers."""

    def __init__(
        self, readers: Sequence[Reader], max_messages: int | None, max_memory: int | None
    ) -> None:
        self._readers = readers
        self._max_messages = max_messages
        self._max_memory = max_memory

    def reason(self) -> str | None:
        """Return why the process must be replaced, or None."""
        if self._max_messages is not None:
            handled = sum(reader.stats().handler_seconds.count for reader in self._readers)
            if handled >= self._max_messages:
                return f"it has handled {handled:,} messages (--max-messages)"
        if self._max_memory is not None:
            used = memory_in_use() / _MEGABYTE
            if used >= self._max_memory:
                return f"it uses {used:,.0f} MB (--max-memory {self._max_memory})"
        return None


def memory_in_use() -> int:
    """Return this process's bytes in memory; without /proc the peak since its start."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
