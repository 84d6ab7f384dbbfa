"""The end of ``gnsqsync demo --spark`` by Ctrl-C: at once, with its processes and files.

Knows processes and signals. A clean end is not worth waiting for: Spark would take seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gnsqsync.cli.common import SignalScope
from gnsqsync.process.signals import ending

# Seconds to wait for the end of killed processes before their files are removed.
_PATIENCE = 1.0


class EndAtOnce(SignalScope):
    """A context manager in which a signal kills the descendants and ends this process.

    ``clean`` removes the files. It is called when no other process can write them any more.
    """

    def __init__(self, clean: Callable[[], object]) -> None:
        super().__init__()
        self._clean = clean

    def _handle(self, number: int, frame: FrameType | None) -> NoReturn:
        for each in ending():
            signal.signal(each, signal.SIG_IGN)
        # The Writers' threads still run, and would log the loss of their nsqds.
        logging.disable()
        _kill_descendants()
        with contextlib.suppress(OSError):
            self._clean()
        # A table on the terminal hides the cursor. os.write() is used because the signal may have
        # come inside of a print().
        show_cursor = b"\n\x1b[?25h" if sys.stdout.isatty() else b""
        with contextlib.suppress(OSError):
            os.write(1, show_cursor + b"stopped before the end\n")
        os._exit(128 + number)


def _kill_descendants() -> None:
    """Send SIGKILL to all descendants, and wait a moment for their end.

    Without /proc, as on macOS, this kills nothing. Spark's JVM and its workers end when the JVM's
    input ends.
    """
    processes = []
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            processes.append(os.pidfd_open(pid))
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE
    while processes and (left := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(processes, [], [], left)
        processes = [process for process in processes if process not in ended]


def _descendants(pid: int) -> list[int]:
    """Return the pids of all descendants, parents before children."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # The thread may end while its file is read.
        with contextlib.suppress(OSError):
            children.extend(map(int, task.read_text().split()))
    return children + [below for child in children for below in _descendants(child)]
