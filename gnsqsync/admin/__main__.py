"""``python -m gnsqsync.admin [flags]``: serve nsqadmin until a signal ends it.

Knows exit statuses and the first log lines. ``serving`` knows signals and sockets.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main", "run_nsqadmin"]


def run_nsqadmin(argv: Sequence[str], *, exit_with_parent: bool = False) -> int:
    """Serve nsqadmin with these flags until a signal ends it. Return the exit status.

    The status is 0 after a signal, 1 if nsqadmin cannot start, 2 for an unknown flag. With
    ``exit_with_parent`` nsqadmin also ends when stdin ends. gevent patches the process, so call
    this in a process of its own, in the main thread.
    """
    from gevent import monkey

    if importlib.util.find_spec("jinja2") is None:
        sys.stderr.write('nsqadmin needs Jinja: pip install "gnsqsync[admin]"\n')
        return 1
    monkey.patch_all()
    # The imports come after the patch, so that these modules run on greenlets.
    from gnsqsync.admin.options import AdminOptions
    from gnsqsync.admin.serving import serve
    from gnsqsync.daemon import flags
    from gnsqsync.daemon.exit_status import exit_status
    from gnsqsync.daemon.golog import Log

    def run() -> None:
        unread: list[str] = []
        options = flags.parse(AdminOptions, argv, unread.append)
        told = Log(options.log_prefix, options.log_level)
        for text in unread:
            told.warning("%s", text)
        serve(options, exit_with_parent=exit_with_parent)

    return exit_status(AdminOptions.program, run)


def main(argv: Sequence[str]) -> int:
    """Run the command line of ``python -m gnsqsync.admin``. Return the exit status."""
    from gnsqsync.daemon.parent import EXIT_WITH_PARENT
    from gnsqsync.process.output import replace_closed

    replace_closed()
    exit_with_parent = argv[:1] == [EXIT_WITH_PARENT]
    return run_nsqadmin(argv[int(exit_with_parent) :], exit_with_parent=exit_with_parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
