"""Shared parts of the commands: address and connection options, signals, formats.

Knows the terminal. Knows no single command.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

import click

from gnsqsync.commands.options import JSON
from gnsqsync.commands.options_click import as_click
from gnsqsync.process.log_output import Lines, make_readable
from gnsqsync.process.output import told_when_full
from gnsqsync.process.signals import Requests, ending, handled
from gnsqsync.stats import counted

Command = TypeVar("Command", bound=Callable[..., Any])
Self = TypeVar("Self", bound="Scope")

# Upper bound of servers that a sentence names.
_NAMED = 5


def nsqd_option() -> Callable[[Command], Command]:
    """Return the repeatable option ``--nsqd-tcp-address``."""
    return click.option(
        "--nsqd-tcp-address",
        "-t",
        "nsqd_tcp_addresses",
        multiple=True,
        metavar="HOST:PORT",
        help="An nsqd's TCP address (port 4150); may be given several times.",
    )


def nsqd_http_option() -> Callable[[Command], Command]:
    """Return the repeatable option ``--nsqd-http-address``."""
    return click.option(
        "--nsqd-http-address",
        "-H",
        "nsqd_http_addresses",
        multiple=True,
        metavar="HOST:PORT",
        help="An nsqd's HTTP address (port 4151); may be given several times.",
    )


def lookupd_option() -> Callable[[Command], Command]:
    """Return the repeatable option ``--lookupd-http-address``."""
    return click.option(
        "--lookupd-http-address",
        "-l",
        "lookupd_http_addresses",
        multiple=True,
        metavar="HOST:PORT",
        help="An nsqlookupd's HTTP address, to find the nsqds by; may be given several times.",
    )


def asked(addresses: Sequence[str]) -> str:
    """Return the asked servers in brackets: the first ones, and the number of further ones."""
    more = len(addresses) - _NAMED
    names = ", ".join(addresses[:_NAMED])
    return f"(asked: {names}{f' and {more} more' if more > 0 else ''})"


_TLS_OPTIONS = (
    click.option(
        "--tls-ca-file",
        metavar="FILE",
        help="Trust these authorities. [default: of SSL_CERT_FILE or REQUESTS_CA_BUNDLE]",
    ),
    click.option("--tls-cert-file", metavar="FILE", help="Client certificate."),
    click.option("--tls-key-file", metavar="FILE", help="Key of the client certificate."),
    click.option("--no-tls-verify", is_flag=True, help="Do not check the server's certificate."),
)


def verbose_option(command: Command) -> Command:
    """Add ``--verbose`` to a command."""
    return click.option("--verbose", "-v", is_flag=True, help="Show what the library does.")(
        command
    )


def counts_option(command: Command) -> Command:
    """Add ``--json`` to a command that counts."""
    return as_click(JSON, help="Print the counts as JSON.")(command)


def end_counts_option(command: Command) -> Command:
    """Add ``--json`` to a command that counts until it ends."""
    return as_click(JSON, help="Print the counts at the end as JSON.")(command)


_CONNECTION_OPTIONS = (
    click.option(
        "--tls", is_flag=True, help="Require TLS; so do --tls-ca-file and --tls-cert-file."
    ),
    *_TLS_OPTIONS,
    click.option(
        "--auth-secret",
        envvar="GNSQSYNC_AUTH_SECRET",
        show_envvar=True,
        metavar="SECRET",
        help="Secret for AUTH; better in the environment than here.",
    ),
    click.option("--snappy", is_flag=True, help="Compress with Snappy."),
    click.option("--deflate", is_flag=True, help="Compress with DEFLATE."),
    verbose_option,
)
_HTTP_OPTIONS = (*_TLS_OPTIONS, verbose_option)


def _with(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def connection_options(command: Command) -> Command:
    """Add TLS, AUTH, compression and ``--verbose`` to a command, for ``connection_keywords``."""
    return _with(_CONNECTION_OPTIONS, command)


def http_options(command: Command) -> Command:
    """Add TLS and ``--verbose`` to a command that asks HTTP APIs only, for ``http_keywords``.

    There is no ``--tls``: an https address, or an nsqd that demands TLS, is asked over TLS anyway.
    """
    return _with(_HTTP_OPTIONS, command)


def connection_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of Reader and Writer from the options of ``connection_options``.

    Remove these options from ``options``, and set up logging for ``--verbose``.
    """
    return {
        **http_keywords(options),
        "tls": options.pop("tls"),
        "auth_secret": options.pop("auth_secret"),
        "snappy": options.pop("snappy"),
        "deflate": options.pop("deflate"),
    }


def http_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of NsqdHTTP and LookupdHTTP from the options of ``http_options``.

    Remove these options from ``options``, and set up logging for ``--verbose``.
    """
    show_log(options.pop("verbose"))
    return {
        "tls_ca_file": options.pop("tls_ca_file"),
        "tls_cert_file": options.pop("tls_cert_file"),
        "tls_key_file": options.pop("tls_key_file"),
        "tls_verify": not options.pop("no_tls_verify"),
    }


def show_log(verbose: bool) -> None:
    """Show the library's log on stderr: warnings, or with ``verbose`` everything.

    Logging that a module of the user has configured stays unchanged.
    """
    make_readable()
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Lines())
        logging.basicConfig(level=logging.DEBUG, handlers=[handler])
        # At DEBUG urllib3 logs each connection and request, and its own retries.
        logging.getLogger("urllib3").setLevel(logging.WARNING)


def raw_option(help: str) -> Callable[[Command], Command]:
    """Return the option ``--raw``, for commands that open envelopes without it."""
    return click.option("--raw", is_flag=True, help=help)


def reader_addresses(nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> dict[str, Any]:
    """Return the address options of a Reader, with the local nsqd if no address is given."""
    return {
        "nsqd_tcp_addresses": list(nsqds) if nsqds or lookupds else ["127.0.0.1:4150"],
        "lookupd_http_addresses": list(lookupds),
    }


class Scope:
    """A context manager with ``begin`` and ``end``, which do nothing by default."""

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def __enter__(self: Self) -> Self:
        self.begin()
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()


class SignalScope(Scope):
    """A context manager in which each signal that ends a program calls ``_handle``."""

    def __init__(self) -> None:
        self._handlers = ExitStack()

    def begin(self) -> None:
        self._handlers.enter_context(handled(ending(), self._handle))

    def end(self) -> None:
        self._handlers.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class Signals(SignalScope):
    """A context manager in which the first signal calls ``stop``, and the second ends at once.

    SIGHUP counts only as a first signal. ``stop`` runs in the signal handler, so it must only set a
    flag. ``force`` ends child processes that would outlive this one. ``received`` is the signal's
    number, or None.
    """

    def __init__(
        self, stop: Callable[[], object], force: Callable[[], object] | None = None
    ) -> None:
        super().__init__()
        self.received: int | None = None
        self._requests = Requests()
        self._stop = stop
        self._force = force

    def _handle(self, number: int, frame: FrameType | None) -> None:
        level = self._requests.add(number)
        if level > 1:
            if self._force is not None:
                self._force()
            os._exit(128 + number)
        if not level:
            return
        self.received = number
        if os.isatty(2):
            os.write(2, b"\nstopping; once more ends at once\n")
        self._stop()


class Flag:
    """An event to wait for with a timeout. A signal handler may set it."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def is_set(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float) -> bool:
        """Wait ``seconds``, a day at most, until the flag is set. Return True if it is set."""
        # wait() does not accept infinity.
        return bool(wait([self._future], min(seconds, 86400.0)).done)


def print_json(value: object) -> None:
    """Print one line of JSON on stdout. CannotWrite if the disk behind stdout is full."""
    with told_when_full(sys.stdout):
        click.echo(json.dumps(value))
        sys.stdout.flush()


def size_text(count: int) -> str:
    """Return a number of bytes for people."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return counted(count, "byte") if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def rate_text(count: int, seconds: float, unit: str) -> str:
    """Return ``count`` per second, or ``count`` alone if ``seconds`` is 0."""
    return f"{count / seconds:,.0f} {unit}/s" if seconds > 0 else f"{count:,} {unit}"
