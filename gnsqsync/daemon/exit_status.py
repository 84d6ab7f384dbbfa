"""Exit status of a daemon, and the last log line of one that cannot start.

Knows the errors of a start. Must not know a server or its options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from gnsqsync.daemon.goflag import Exit
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import OptionsError, StartError

__all__ = ["exit_status"]


def exit_status(program: str, run: Callable[[], None]) -> int:
    """Run a daemon until it ends. Return 0, or log why it cannot start and return 1 or 2."""
    # The Go programs log a fatal error with this prefix, whatever --log-prefix says.
    log = Log(f"[{program}] ")
    try:
        run()
    except Exit as exit_:
        sys.stdout.write(exit_.out)
        sys.stderr.write(exit_.err)
        return exit_.status
    except StartError as error:
        log.fatal("%s", error)
        return 1
    except OptionsError as error:
        log.fatal("failed to instantiate %s - %s", program, error)
        return 1
    return 0
