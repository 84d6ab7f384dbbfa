"""``python -m gnsqsync.admin [flags]``: serves nsqadmin until it is told to end.

Knows signals, exit statuses, sockets and time-outs; the application knows the rest.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main", "run_nsqadmin"]


def run_nsqadmin(argv: Sequence[str], *, exit_with_parent: bool = False) -> int:
    """Serve nsqadmin with these flags until a signal ends it; the exit status.

    ``exit_with_parent``: also ends when stdin does. 0 after a signal, 1 when it cannot start, 2 for
    an unknown flag. The process becomes one of greenlets, so call it in a process of its own, in
    the main thread.
    """
    from gevent import monkey

    if importlib.util.find_spec("jinja2") is None:
        sys.stderr.write('nsqadmin needs Jinja: pip install "gnsqsync[admin]"\n')
        return 1
    monkey.patch_all()
    # All that is imported from here on runs on greenlets.
    from gnsqsync.admin.options import AdminOptions
    from gnsqsync.admin.serving import serve
    from gnsqsync.daemon import flags
    from gnsqsync.daemon.goflag import Exit
    from gnsqsync.daemon.golog import Log
    from gnsqsync.daemon.options import OptionsError, StartError

    # What ends the Go programs has this prefix, whatever --log-prefix says.
    log = Log("[nsqadmin] ")
    unread: list[str] = []
    try:
        options = flags.parse(AdminOptions, argv, unread.append)
        told = Log(options.log_prefix, options.log_level)
        for text in unread:
            told.warning("%s", text)
        serve(options, exit_with_parent=exit_with_parent)
    except Exit as exit_:
        sys.stdout.write(exit_.out)
        sys.stderr.write(exit_.err)
        return exit_.status
    except StartError as error:
        log.fatal("%s", error)
        return 1
    except OptionsError as error:
        log.fatal("failed to instantiate nsqadmin - %s", error)
        return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """The command line of ``python -m gnsqsync.admin``; returns the exit status."""
    from gnsqsync.daemon.parent import EXIT_WITH_PARENT
    from gnsqsync.service.output import replace_closed

    replace_closed()
    exit_with_parent = argv[:1] == [EXIT_WITH_PARENT]
    return run_nsqadmin(argv[int(exit_with_parent) :], exit_with_parent=exit_with_parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
