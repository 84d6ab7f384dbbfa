"""``python -m gnsqsync.embedded nsqd|nsqlookupd [flags]``: run one server until a signal ends it.

Knows signals, exit statuses and the first log lines; the servers know the rest. A server has
``start()``, which binds, logs its "listening on" lines and returns, and ``stop()``, which returns
after everything is closed and saved. Both may raise OptionsError or StartError.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gnsqsync.daemon import flags
from gnsqsync.daemon.exit_status import exit_status
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import is_loopback
from gnsqsync.daemon.parent import EXIT_WITH_PARENT, wait_for_end_of_stdin
from gnsqsync.embedded.options import LookupdOptions, NsqdOptions
from gnsqsync.process.output import replace_closed
from gnsqsync.process.signals import told_on_gevent


class Server(Protocol):
    """The methods that NsqdServer and LookupdServer share."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def run_nsqd(argv: Sequence[str], *, exit_with_parent: bool = False) -> int:
    """Run the embedded nsqd with these flags until a signal ends it. Return the exit status.

    The status is 0 after a clean stop, 1 if the server cannot start, 2 for an unknown flag. With
    ``exit_with_parent`` the server also stops when stdin ends. Call it in the main thread.
    """

    def make(options: NsqdOptions) -> Server:
        from gnsqsync.embedded.server import NsqdServer

        return NsqdServer(options)

    return _run(NsqdOptions, make, argv, exit_with_parent)


def run_nsqlookupd(argv: Sequence[str], *, exit_with_parent: bool = False) -> int:
    """Run the embedded nsqlookupd. Arguments and exit status are the same as for run_nsqd."""

    def make(options: LookupdOptions) -> Server:
        from gnsqsync.embedded.lookupd_server import LookupdServer

        return LookupdServer(options)

    return _run(LookupdOptions, make, argv, exit_with_parent)


_Options = TypeVar("_Options", NsqdOptions, LookupdOptions)


def _run(
    cls: type[_Options],
    make: Callable[[_Options], Server],
    argv: Sequence[str],
    exit_with_parent: bool,
) -> int:
    def run() -> None:
        unread: list[str] = []
        options = flags.parse(cls, argv, unread.append)
        _say_what_it_is(Log(options.log_prefix, options.log_level), options, unread)
        _serve(_made(make, options), exit_with_parent)

    return exit_status(cls.program, run)


def _made(make: Callable[[_Options], Server], options: _Options) -> Server:
    # The imports leave hardly any garbage, and a search for it takes a twelfth of a start.
    gc.disable()
    try:
        return make(options)
    finally:
        gc.enable()


def _say_what_it_is(log: Log, options: NsqdOptions | LookupdOptions, unread: Sequence[str]) -> None:
    program = options.program
    log.info("this is gnsqsync's embedded %s, for development and tests", program)
    log.info("%s", flags.version_text(program))
    addresses = [options.tcp_address, options.http_address]
    if isinstance(options, NsqdOptions):
        log.info("ID: %d", options.node_id)
        if options.tls_cert:
            addresses.append(options.https_address)
    for address in addresses:
        if not is_loopback(address):
            log.warning("%s can be reached from other machines", address)
    for text in unread:
        log.warning("%s", text)


def _serve(server: Server, exit_with_parent: bool) -> None:
    import gevent

    # gevent prints the context of a failed greenlet with this function. The default imports pprint,
    # which takes a tenth of a start.
    gevent.config.format_context = str
    with told_on_gevent() as told:
        server.start()
        if exit_with_parent:
            gevent.spawn(wait_for_end_of_stdin).link(lambda _: told.set())
        told.wait()
        server.stop()


def main(argv: Sequence[str]) -> int:
    """Run the command line of ``python -m gnsqsync.embedded``. Return the exit status."""
    replace_closed()
    arguments = list(argv)
    exit_with_parent = arguments[:1] == [EXIT_WITH_PARENT]
    del arguments[: int(exit_with_parent)]
    programs = {"nsqd": run_nsqd, "nsqlookupd": run_nsqlookupd}
    run = programs.get(arguments[0]) if arguments else None
    if run is None:
        sys.stderr.write(
            "usage: python -m gnsqsync.embedded [--exit-with-parent] nsqd|nsqlookupd [flags]\n"
        )
        return 2
    return run(arguments[1:], exit_with_parent=exit_with_parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
