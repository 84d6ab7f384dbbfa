"""Process 1 of a container: the small parent of a program, which reaps orphaned processes.

Process 1 inherits each process whose parent has ended, and must reap it. A process that runs
handlers cannot do that, because it would take the exit codes of the handlers' own children. So the
program is started again as a child of this file. The file runs as a script, imports nothing of the
package, and passes signals on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["become_first_process", "run_child"]

# ``si_code`` of a signal from the kernel, such as Ctrl-C, which the child gets from it, too.
_SI_KERNEL = 0x80
# Signals that Python ignores. A program expects their defaults.
_IGNORED_BY_PYTHON = signal.SIGPIPE, signal.SIGXFSZ


def become_first_process(words: Sequence[str]) -> None:
    """Run this process's command line as a child if this is process 1; else return.

    ``words`` are the last words of the command line. If they differ, another program, such as a
    test, has called the command, and this function returns, too.
    """
    if os.getpid() != 1 or not words or sys.orig_argv[-len(words) :] != [*words]:
        return
    if not sys.executable or not os.path.isfile(__file__):
        return
    # The kernel drops signals for process 1 that are neither handled nor blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # The parent needs no site-packages. The user's PYTHON variables are for the child.
        os.execv(  # nosec B606
            sys.executable,
            [sys.executable, "-I", "-S", __file__, sys.executable, *sys.orig_argv[1:]],
        )
    except OSError:
        # The program runs in process 1 itself, and no process reaps orphans.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_child(command: list[str]) -> int:
    """Run the command as a child until it ends, and reap all orphans. Return its exit code.

    For a child that a signal ended, this is 128 plus the signal's number, as in a shell.
    """
    everything = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    # If SIGCHLD were ignored, the kernel would reap the child, and its exit code would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.posix_spawn(
        command[0], command, os.environ, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON
    )
    while True:
        came = signal.sigwaitinfo(everything)
        if came.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                return code
        # A closed terminal sends SIGHUP to its first process only, so it is always passed on.
        elif came.si_code != _SI_KERNEL or came.si_signo == signal.SIGHUP:
            os.kill(child, came.si_signo)


def _reap(child: int) -> int | None:
    """Reap all processes that have ended. Return the exit code of the child if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not pid:
            return None


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[1:]))
