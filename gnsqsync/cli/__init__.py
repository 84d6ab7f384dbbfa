"""The console script ``gnsqsync``. Loads click and rich only when a command needs them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from gnsqsync.process.first_process import become_first_process
from gnsqsync.process.output import replace_closed

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0 done, 1 failed, 2 wrong usage.

    ``nsqd``, ``nsqlookupd`` and ``nsqadmin`` take the flags of the Go programs, and need neither
    click nor rich.
    """
    if argv is None:
        become_first_process(sys.argv[1:])
    replace_closed()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("nsqd", "nsqlookupd"):
        from gnsqsync.embedded.__main__ import run_nsqd, run_nsqlookupd

        run = run_nsqd if arguments[0] == "nsqd" else run_nsqlookupd
        return run(arguments[1:])
    if arguments and arguments[0] == "nsqadmin":
        from gnsqsync.admin.__main__ import run_nsqadmin

        return run_nsqadmin(arguments[1:])
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"gnsqsync: the command line needs {' and '.join(missing)}, which"
            f" {'is' if len(missing) == 1 else 'are'} not installed:"
            ' pip install "gnsqsync[cli]"',
            file=sys.stderr,
        )
        return 1
    from gnsqsync.cli.app import run_command

    return run_command(arguments)
