"""``gnsqsync consume``: run a handler of the user as a consumer."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from gnsqsync import Message, Reader
from gnsqsync.cli.common import (
    connection_keywords,
    connection_options,
    end_counts_option,
    lookupd_option,
    nsqd_option,
    raw_option,
    reader_addresses,
)
from gnsqsync.commands.envelopes import of_headers
from gnsqsync.commands.integrations import run_consumers
from gnsqsync.commands.options import CONSUME
from gnsqsync.commands.options_click import as_click
from gnsqsync.errors import ConfigError
from gnsqsync.options import check_handler
from gnsqsync.process.hard_limit import HardLimit
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.process.output import mention, say
from gnsqsync.process.process_limits import ProcessLimits
from gnsqsync.process.reload import waiting_for_repair
from gnsqsync.process.settings import default_of, make_observer

if TYPE_CHECKING:
    from gnsqsync.process.supervisor import Ending
    from gnsqsync.stats import ReaderStats


def import_module(name: str, ctx: click.Context) -> ModuleType:
    """Import a module of the user. The working directory is searched, too.

    The error says where the import fails. With ``--reload`` the command then waits for a change of
    the files.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        with waiting_for_repair(bool(ctx.params.get("reload")), _say):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise click.BadParameter(f"cannot import {name!r}: {error}") from None
    except (ImportError, SyntaxError) as error:
        # Only frames in the user's files are shown. The first frame is ours.
        frames = traceback.extract_tb(error.__traceback__)[1:]
        theirs = [frame for frame in frames if "importlib" not in frame.filename]
        lines = "".join(traceback.format_list(theirs) + traceback.format_exception_only(error))
        raise click.ClickException(f"cannot import {name!r}:\n{lines.rstrip()}") from None


def import_observer(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Import the module, to report the failure of an import. ``make_observer`` checks the rest."""
    module_name, colon, _ = (value or "").partition(":")
    if module_name.startswith("."):
        raise click.BadParameter(f"{value!r} is not of the form package.module:function")
    if colon and module_name:
        import_module(module_name, ctx)
    return value


# Values of ``--backoff`` -> the Reader's argument.
_BACKOFFS: dict[str, bool | str] = {
    "outages": True,
    "every-failure": "every_failure",
    "off": False,
}


def load_handler(
    ctx: click.Context, param: click.Parameter, value: str
) -> Callable[[Message], object]:
    """Return the object with the name ``package.module:function``. See ``import_module``."""
    module_name, colon, path = value.partition(":")
    if not colon or not module_name or not path or module_name.startswith("."):
        raise click.BadParameter(f"{value!r} is not of the form package.module:function")
    target: Any = import_module(module_name, ctx)
    for name in path.split("."):
        try:
            target = getattr(target, name)
        except AttributeError:
            raise click.BadParameter(f"module {module_name!r} has no {path!r}") from None
    if not callable(target):
        raise click.BadParameter(f"{value!r} is a {type(target).__name__}, not a function")
    try:
        with waiting_for_repair(bool(ctx.params.get("reload")), _say, always=(ConfigError,)):
            check_handler(repr(value), target)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    handler: Callable[[Message], object] = target
    return handler


@click.command(
    epilog="""\b
Example: gnsqsync consume orders invoices shop.jobs:make_invoice
         gnsqsync consume orders invoices shop.jobs:make_invoice -l 127.0.0.1:4161 --processes 4
         gnsqsync consume orders invoices shop.jobs:make_invoice --reload --verbose
         gnsqsync consume orders invoices shop.jobs:make_invoice --metrics-address 9150
         gnsqsync consume orders invoices shop.jobs:make_invoice --json | jq .finished

--json prints one object per process at its end, after the handler's own output: topic, channel,
pid, received, finished, requeued, gave_up, unanswered, handlers_at_work.

Exit codes: 0 stopped by a signal, and every message was answered; 1 anything else; 2 wrong usage.
""",
)
@click.argument("topic")
@click.argument("channel")
@click.argument("handler", callback=load_handler, metavar="MODULE:FUNCTION")
@nsqd_option()
@lookupd_option()
@as_click(CONSUME["concurrency"])
@as_click(
    CONSUME["processes"],
    help="Number of processes, each with this concurrency. A killed one is replaced.",
)
# The callback of HANDLER reads this option, so it is parsed first.
@as_click(CONSUME["reload"], is_eager=True)
@as_click(
    CONSUME["max_in_flight"],
    help="Upper bound of unanswered messages. [default: the value of --concurrency]",
)
@click.option(
    "--max-attempts",
    default=default_of("max_attempts"),
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Give up a message whose handler fails on this delivery or a later one; 0: never.",
)
@click.option(
    "--max-deliveries",
    default=default_of("max_deliveries"),
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Give up a message that was delivered more often, without the handler; 0: never.",
)
@click.option(
    "--requeue-delay",
    default=default_of("requeue_delay"),
    show_default=True,
    type=float,
    metavar="SECONDS",
    help="Seconds until a failed message comes again, times its attempts.",
)
@click.option(
    "--backoff",
    default="outages",
    show_default=True,
    type=click.Choice(["outages", "every-failure", "off"]),
    callback=lambda context, option, value: _BACKOFFS[value],
    help="Pause the consumer when most of different messages fail, after every failure, or never.",
)
@click.option(
    "--msg-timeout",
    type=float,
    metavar="SECONDS",
    help="Seconds a handler may take. [default: nsqd's --msg-timeout]",
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="Interrupt a handler that runs longer; its message comes again. [default: no limit]",
)
@as_click(CONSUME["hard_time_limit"])
@as_click(
    CONSUME["max_messages"],
    help="Stop a process after N messages. With --processes another one takes its place; without"
    " it the program ends with 0. [default: no limit]",
)
@as_click(
    CONSUME["max_memory"],
    help="Stop a process that uses more megabytes, in the same way. [default: no limit]",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    help="Publish given up messages to this topic. Without this option and --on-giving-up they"
    " wait in nsqd.",
)
@click.option(
    "--on-giving-up", type=click.Choice(["discard"]), help="discard: finish given up messages."
)
@click.option(
    "--headers",
    is_flag=True,
    help="Publish dead letters as envelopes, with their story in headers. Without it they are"
    " published unchanged.",
)
@raw_option(
    "Give the handler nsqd's bytes. Without it message.headers and message.body are those of the"
    " envelope, if there is one."
)
@as_click(
    CONSUME["shutdown_timeout"],
    help="Seconds for which running handlers may go on after the first signal.",
)
@click.option(
    "--observer",
    callback=import_observer,
    metavar="MODULE:FUNCTION",
    help="A function that is called with topic and channel and returns a gnsqsync.Observer.",
)
@as_click(
    CONSUME["metrics_address"],
    help="Serve metrics for Prometheus, /livez and /readyz at this address; without a host on"
    " 127.0.0.1, with --processes on this port and the next ones.",
)
@as_click(
    CONSUME["handler_limit"], help="/livez fails when a handler runs longer. [default: no limit]"
)
@end_counts_option
@connection_options
def consume(
    topic: str,
    channel: str,
    handler: Callable[[Message], object],
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    processes: int,
    reload: bool,
    shutdown_timeout: float,
    observer: str | None,
    metrics_address: str | None,
    handler_limit: float | None,
    hard_time_limit: float | None,
    max_messages: int | None,
    max_memory: int | None,
    as_json: bool,
    headers: bool,
    raw: bool,
    **options: Any,
) -> int:
    """Call MODULE:FUNCTION with each message of TOPIC on CHANNEL, until a signal comes.

    When the function returns, the message is done; when it raises, the message comes again later.
    The first signal lets running handlers finish and gives all other messages back, the
    second does not wait for handlers, the third ends the process at once.
    """
    if headers and raw:
        raise click.UsageError("--headers opens envelopes and --raw does not; give one of them")
    connection = connection_keywords(options)
    exposed = Exposed(metrics_address, handler_limit)
    reader = Reader(
        topic,
        channel,
        handler,
        **reader_addresses(nsqd_tcp_addresses, lookupd_http_addresses),
        observer=exposed.observers(
            topic, channel, make_observer(observer, "--observer", topic, channel)
        ),
        **of_headers(handler, headers=headers, raw=raw),
        **connection,
        **options,
    )
    named = [(handler_name(handler), reader)]
    return run_consumers(
        named,
        say=_say,
        complain=lambda text: _say(f"gnsqsync: {text}"),
        processes=processes,
        reload=reload,
        stop_timeout=shutdown_timeout,
        hard_limit=HardLimit(hard_time_limit, named),
        limits=ProcessLimits(max_messages, max_memory),
        around=lambda number: exposed.serve([reader], number, _say),
        report=print_counts if as_json else None,
    )


def print_counts(readers: list[ReaderStats], ending: Ending) -> None:
    """Print one object for the command's only Reader."""
    (stats,) = readers
    counts = {
        "topic": stats.topic,
        "channel": stats.channel,
        "pid": os.getpid(),
        "received": stats.received,
        "finished": stats.finished,
        "requeued": stats.requeued,
        "gave_up": stats.gave_up,
        "unanswered": sum(result.unanswered for result in ending.results),
        "handlers_at_work": sum(result.workers_running for result in ending.results),
    }
    say(sys.stdout, json.dumps(counts))


def handler_name(handler: Callable[[Message], object]) -> str:
    """Return the name of a handler, such as "shop.jobs:make_invoice"."""
    owner = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{owner.__module__}:{owner.__qualname__}"


def _say(text: str) -> None:
    # Standard output belongs to the handler.
    mention(sys.stderr, text)
