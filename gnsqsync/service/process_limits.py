"""When a process has consumed enough and is to be replaced: ``--max-messages``, ``--max-memory``.

Knows Readers' counts and the memory of this process; stops nothing.
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

_MEGABYTE = 1024 * 1024
# Part of max_messages that is added by chance, so that processes do not end together.
_JITTER = 0.1


class ProcessLimits:
    """What one process may do: handle so many messages, use so many megabytes; None: no limit.

    ConfigError for what is not allowed.
    """

    def __init__(self, max_messages: int | None = None, max_memory: int | None = None) -> None:
        if max_messages is not None:
            check_int("--max-messages", max_messages, 1)
        if max_memory is not None:
            check_int("--max-memory", max_memory, 1, unit=" MB")
        self._max_messages = max_messages
        self._max_memory = max_memory

    def check_start(self) -> None:
        """In a process that has handled nothing. ConfigError when it is too large already."""
        if self._max_memory is None:
            return
        used = memory_in_use() / _MEGABYTE
        if used >= self._max_memory:
            raise ConfigError(
                f"--max-memory is {self._max_memory} MB, and this process has {used:.0f} MB before"
                " its first message; give more"
            )

    def watch(self, readers: Sequence[Reader]) -> Watch:
        """For the process that runs them."""
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
        """Why the process is to be replaced; None: it is not."""
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
    """Bytes of this process in memory; where there is no /proc, the most there ever were."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
