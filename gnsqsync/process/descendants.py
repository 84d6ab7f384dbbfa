"""The descendants of this process, for a program that ends at once and leaves nobody behind.

Knows processes. Must not know what they do.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["kill_descendants"]


def kill_descendants(patience: float) -> None:
    """Send SIGKILL to all descendants, and wait for their end for ``patience`` seconds at most.

    Without /proc, as on macOS, this kills nothing.
    """
    processes = []
    for pid in _descendants(os.getpid()):
        with suppress(ProcessLookupError):
            processes.append(os.pidfd_open(pid))
    for process in processes:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    deadline = time.monotonic() + patience
    for process in processes:
        select.select([process], [], [], max(deadline - time.monotonic(), 0.0))
        os.close(process)


def _descendants(pid: int) -> list[int]:
    """Return the pids of all descendants, parents before children."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # The thread may end while its file is read.
        with suppress(OSError):
            children.extend(map(int, task.read_text().split()))
    return children + [below for child in children for below in _descendants(child)]
