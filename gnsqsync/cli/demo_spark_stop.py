"""How Ctrl-C ends ``gnsqsync demo --spark``: at once, with all processes and files of it.

Knows processes and signals. Nothing of the demo is worth a clean end: Spark would take seconds for
it, in which it answers nobody.
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
from gnsqsync.service.signals import ending

# Seconds for what was killed to be gone, before files are removed that it may write.
_PATIENCE = 1.0


class EndAtOnce(SignalScope):
    """While it is entered, each signal that ends a program ends it and its descendants.

    ``clean`` removes the files; it is called when nobody else is left to write them.
    """

    def __init__(self, clean: Callable[[], object]) -> None:
        super().__init__()
        self._clean = clean

    def _handle(self, number: int, frame: FrameType | None) -> NoReturn:
        for each in ending():
            signal.signal(each, signal.SIG_IGN)
        # The Writers' threads live until the last line, and lose their nsqds now.
        logging.disable()
        _kill_descendants()
        with contextlib.suppress(OSError):
            self._clean()
        # A table on the terminal hides the cursor. No print(): the signal may have come inside one.
        show_cursor = b"\n\x1b[?25h" if sys.stdout.isatty() else b""
        with contextlib.suppress(OSError):
            os.write(1, show_cursor + b"stopped before the end\n")
        os._exit(128 + number)


def _kill_descendants() -> None:
    """SIGKILL to children, theirs and so on, and wait a moment for their end.

    Without /proc, as on macOS, nothing is killed here: Spark's JVM ends when its input does, and
    its workers with it.
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
    """Parents before their children."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            children.extend(map(int, task.read_text().split()))
    return children + [below for child in children for below in _descendants(child)]
