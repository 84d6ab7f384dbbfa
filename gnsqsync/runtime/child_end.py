"""The end of a forked child, which is like the end of a program that was never forked.

Knows the interpreter and a limit in seconds; knows neither Readers nor the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from typing import Any, NoReturn

from gnsqsync.runtime.watchdog import Watchdog, run_aside

__all__ = ["end_child", "leave_to_parent"]

log: logging.Logger = logging.getLogger("gnsqsync.supervisor")

# Seconds for the log line about an end that takes too long: a hook may hold the lock of the log.
_TELL_SECONDS = 5.0
# Upper bound in seconds of the limit. A lock cannot wait for infinity.
_LONGEST = 86400.0


def leave_to_parent() -> None:
    """Keep the end of this child from what belongs to its parent; called right after the fork.

    The parent's temporary folders and other finalizers are not run here, and multiprocessing does
    not end the parent's processes.
    """
    # Neither registry is public. An interpreter without them has nothing to leave.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    processes: Any = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    processes.clear()


def end_child(code: int, seconds: float) -> NoReturn:
    """End this process with the exit code, after what an interpreter does at its end.

    Threads that are no daemons are joined, and functions registered with atexit are called, also
    those that the parent registered before the fork. An end that takes more than ``seconds`` is cut
    short with an ERROR, and a code of 0 becomes 1.
    """

    def tell() -> None:
        log.error(
            "process %d was at its end for %g s; ending it without the rest of its atexit hooks"
            " and threads",
            os.getpid(),
            seconds,
        )

    def cut_short() -> None:
        run_aside(tell)(_TELL_SECONDS)
        os._exit(code or 1)

    with Watchdog(min(seconds, _LONGEST), cut_short):
        try:
            # The order of the interpreter. atexit has no public name for it; uWSGI calls this one.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        except BaseException:  # noqa: BLE001 - a hook has failed, and the child ends in any case
            sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            # A pipe whose reader has left.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
