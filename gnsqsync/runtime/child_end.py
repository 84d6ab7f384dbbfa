"""End of a forked child, made like the end of a program that was never forked.

Knows the interpreter and a limit in seconds. Must not know Readers or the parent.

``leave_to_parent`` runs right after the fork, and ``end_child`` in place of an exit.

Surprise: hooks that the parent registered with atexit before the fork run in the child, too.
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

# Seconds to log that the end takes too long, because a hook may hold the lock of the log.
_TELL_SECONDS = 5.0
# Upper bound in seconds of the limit, because a lock cannot wait for infinity.
_LONGEST = 86400.0


def leave_to_parent() -> None:
    """Keep this child's end away from what belongs to its parent. Called right after the fork.

    Finalizers of the parent, such as those of temporary folders, do not run here, and
    multiprocessing does not end the parent's processes.
    """
    # Neither registry is public. An interpreter without them has nothing to leave.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    processes: Any = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    processes.clear()


def end_child(code: int, seconds: float) -> NoReturn:
    """End this process with the exit code, after the work of an interpreter's end.

    Threads that are not daemons are joined. Functions registered with atexit are called, even those
    that the parent registered before the fork. An end that takes more than ``seconds`` is cut short
    with an ERROR, and a code of 0 becomes 1.
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
            # The interpreter's order. atexit has no public name for this; uWSGI uses it, too.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        except BaseException:  # noqa: BLE001 - a hook has failed, and the child ends in any case
            sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            # The reader of a pipe may have left.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
