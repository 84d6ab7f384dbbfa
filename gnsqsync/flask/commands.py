"""``flask nsq``: its commands. Knows click and the terminal; decides nothing else."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any, Protocol

import click
from flask import Flask, current_app
from flask.cli import AppGroup, with_appcontext

from gnsqsync import Writer
from gnsqsync.cluster.diagnosis import examine
from gnsqsync.commands.integrations import (
    bodies_of,
    failure_of,
    listing,
    publish_all,
    run_consumers,
    shown,
    topics_of,
)
from gnsqsync.commands.letter_actions import ACTIONS
from gnsqsync.commands.letters_click import dead_letter_command, run_in_terminal
from gnsqsync.commands.options import (
    DOCTOR,
    HEALTH,
    JSON,
    PUBLISH,
    RELAY,
    SELECTION,
    consume_options,
)
from gnsqsync.commands.options_click import click_parameters
from gnsqsync.dead_letters import DeadLetters
from gnsqsync.dead_letters.places import CHANNEL
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.flask import relay
from gnsqsync.flask.config import backend_of, read_settings
from gnsqsync.flask.handlers import Handler
from gnsqsync.flask.starting import NSQ_HELP
from gnsqsync.options import check_topic
from gnsqsync.process.first_process import become_first_process
from gnsqsync.process.forked_engines import not_shared
from gnsqsync.process.handler_claims import check_claims
from gnsqsync.process.hard_limit import HardLimit
from gnsqsync.process.log_output import readable_log
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.process.output import CannotWrite, drop_unwritten, mention, replace_closed, say
from gnsqsync.process.probe import ask_health
from gnsqsync.process.process_limits import ProcessLimits
from gnsqsync.process.reload import waiting_for_repair

__all__ = ["commands_of"]


class Extension(Protocol):
    """The part of the extension object that the commands need."""

    @property
    def writer(self) -> Writer: ...
    @property
    def handlers(self) -> dict[str, Handler]: ...


def commands_of(nsq: Extension) -> AppGroup:
    """Return the group ``nsq`` for the applications of this extension object."""
    health = click_parameters(HEALTH.values(), show_default=("address", "timeout"))
    group = _Group("nsq", callback=replace_closed, help=NSQ_HELP)
    group.add_command(_command("consume", _CONSUME_PARAMETERS, partial(_consume, nsq)))
    group.add_command(_command("publish", _PUBLISH_PARAMETERS, partial(_publish, nsq)))
    group.add_command(_command("stat", _STAT_PARAMETERS, partial(_stat)))
    group.add_command(_command("doctor", _DOCTOR_PARAMETERS, partial(_doctor)))
    dead_letters = click.Group("dead-letters", help="List, show, requeue or purge dead letters.")
    for action in ACTIONS:
        callback = with_appcontext(partial(_dead_letters, action))
        dead_letters.add_command(
            dead_letter_command(action, callback, "flask nsq dead-letters", [_CHANNEL])
        )
    group.add_command(dead_letters)
    group.add_command(_command("health", health, partial(_health)))
    group.add_command(_command("relay", click_parameters(RELAY.values()), partial(relay.relay)))
    return group


def _command(
    name: str, parameters: list[click.Parameter], function: partial[None]
) -> click.Command:
    """Return a command that runs in the application's context, with the docstring as its help."""
    return click.Command(
        name, params=parameters, callback=with_appcontext(function), help=function.func.__doc__
    )


# -- consume -------------------------------------------------------------------------------------


_CONSUME_PARAMETERS: list[click.Parameter] = [
    click.Argument(["names"], nargs=-1, metavar="[NAME]..."),
    *click_parameters([*SELECTION.values(), *consume_options("@nsq.handler").values()]),
]


def _consume(
    nsq: Extension,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    channels: tuple[str, ...],
    show_list: bool,
    **options: Any,
) -> None:
    """Call the functions marked with @nsq.handler with the messages of their channels.

    NAME: the names of functions; all of them if none. The first signal lets running
    handlers finish and gives all other messages back, the second does not wait for handlers, the
    third ends the process at once. Exit code 0: stopped by a signal, and every message was
    answered.
    """
    handlers = _select(nsq, names, topics, channels)
    if show_list:
        rows = [(h.name, h.topic, h.channel, h.where) for h in handlers]
        for line in listing([("name", "topic", "channel", "function"), *rows]):
            _say(line)
        return
    try:
        code = _run(nsq, handlers, **options)
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    if code:
        _complain("not stopped cleanly")
    click.get_current_context().exit(code)


def _run(
    nsq: Extension,
    handlers: list[Handler],
    *,
    concurrency: int | None,
    max_in_flight: int | None,
    processes: int,
    reload: bool,
    shutdown_timeout: float,
    metrics_address: str | None,
    handler_limit: float | None,
    hard_time_limit: float | None,
    max_messages: int | None,
    max_memory: int | None,
) -> int:
    """Run the handlers until a signal comes. Return the exit code."""
    limits = {"concurrency": concurrency, "max_in_flight": max_in_flight}
    exposed = Exposed(metrics_address, handler_limit)
    with waiting_for_repair(reload, _mention, always=(ConfigError,)):
        settings = read_settings(_app())
        check_claims(handler.claim(settings) for handler in nsq.handlers.values())
        named = [(h.name, h.reader(_app(), exposed=exposed, **limits)) for h in handlers]
    return run_consumers(
        named,
        before_fork=_before_fork,
        say=_mention,
        complain=_complain,
        processes=processes,
        reload=reload,
        stop_timeout=shutdown_timeout,
        hard_limit=HardLimit(hard_time_limit, named),
        limits=ProcessLimits(max_messages, max_memory),
        around=lambda number: exposed.serve(
            [reader for _, reader in named], number, _mention, lambda: {"default": nsq.writer}
        ),
    )


def _before_fork() -> None:
    """Keep the children from using open connections of the application's databases.

    ``db.create_all()`` opens such connections. The engines are those of Flask-SQLAlchemy, with its
    binds.
    """
    database = _app().extensions.get("sqlalchemy")
    not_shared(getattr(database, "engines", {}).values())


def _select(
    nsq: Extension, names: tuple[str, ...], topics: tuple[str, ...], channels: tuple[str, ...]
) -> list[Handler]:
    """Return the handlers that the command line names, all of them without a name."""
    known = nsq.handlers
    if not known:
        raise click.ClickException(
            "no handlers: mark functions with @nsq.handler, in a module that the application"
            " imports"
        )
    for name in names:
        if name not in known:
            raise click.ClickException(
                f"no handler is called {name!r}; there are {', '.join(known)}"
            )
    chosen = [
        handler
        for name, handler in known.items()
        if (not names or name in names)
        and (not topics or handler.topic in topics)
        and (not channels or handler.channel in channels)
    ]
    if not chosen:
        wanted = [f"topic {topic}" for topic in topics]
        wanted += [f"channel {channel}" for channel in channels]
        raise click.ClickException(f"no handler for {', '.join(wanted)}; --list shows all")
    return chosen


# -- publish -------------------------------------------------------------------------------------

_PUBLISH_PARAMETERS: list[click.Parameter] = [
    click.Argument(["topic"]),
    click.Argument(["bodies"], nargs=-1, metavar="[BODY]..."),
    *click_parameters(PUBLISH.values()),
]


def _publish(
    nsq: Extension,
    topic: str,
    bodies: tuple[str, ...],
    defer: float | None,
    timeout: float | None,
) -> None:
    """Publish the bodies, or else the lines of standard input without the empty ones.

    One message each. Exit code 0: nsqd has accepted all of them.
    """
    accepted = 0
    try:
        # A wrong topic is an error even if there is nothing to publish.
        check_topic(topic)
        messages = bodies_of(bodies, sys.stdin)
        for more in publish_all(nsq.writer, topic, messages, defer=defer, timeout=timeout):
            accepted += more
        _say(f"{accepted} published to {topic}")
    except NSQError as error:
        raise click.ClickException(failure_of(error, accepted, topic)) from error


# -- stat ----------------------------------------------------------------------------------------

_STAT_PARAMETERS: list[click.Parameter] = [
    click.Argument(["topic"], required=False),
    *click_parameters([JSON]),
]


def _stat(topic: str | None, as_json: bool) -> None:
    """Show depths and clients of topics and channels, summed over all nsqds.

    It asks NSQ_NSQD_HTTP_ADDRESSES, or the nsqds that NSQ_LOOKUPD_ADDRESSES list, or the ports
    after those of NSQ_NSQD_ADDRESSES. Exit code 1: a server did not answer, or there is no such
    topic.
    """
    try:
        settings = read_settings(_app())
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    topics, failures = topics_of(
        topic,
        nsqd_http=settings.nsqd_http,
        lookupd_http=settings.lookupd,
        nsqd_tcp=settings.nsqd or ("127.0.0.1:4150",),
        options=settings.options,
    )
    for line in shown(topics, failures, as_json=as_json):
        _say(line)
    if failures:
        raise click.ClickException("; ".join(failures))


# -- doctor --------------------------------------------------------------------------------------

_DOCTOR_PARAMETERS: list[click.Parameter] = [
    *_STAT_PARAMETERS,
    *click_parameters(DOCTOR.values(), show_default=DOCTOR),
]


def _doctor(
    topic: str | None, channel: str | None, seconds: float, timeout: float, as_json: bool
) -> None:
    """Say why messages wait in the cluster of the config, or in TOPIC, or that all is well.

    It asks the servers of NSQ_LOOKUPD_ADDRESSES, NSQ_NSQD_ADDRESSES and NSQ_NSQD_HTTP_ADDRESSES. It
    tries each advertised address as a consumer on this machine would, with the TLS and AUTH of
    NSQ_OPTIONS, but subscribes to nothing. Exit code 0: all is well, or there are hints only.
    """
    try:
        settings = read_settings(_app())
        found = examine(settings.doctor_question(topic, channel, seconds, timeout))
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    for line in [json.dumps(found.json())] if as_json else found.lines():
        _say(line)
    click.get_current_context().exit(0 if found.is_good else 1)


# -- health --------------------------------------------------------------------------------------


def _health(address: str, ready: bool, processes: int, timeout: float) -> None:
    """Ask a consumer whether it is alive, or with --ready whether it is connected: one line.

    It asks the --metrics-address of flask nsq consume. Exit code 0: it is. gnsqsync health does the
    same without loading the application.
    """
    try:
        found = ask_health(address, ready=ready, processes=processes, timeout=timeout)
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    _say(found.text)
    click.get_current_context().exit(0 if found.good else 1)


# -- dead-letters ---------------------------------------------------------------------------------

_CHANNEL = click.option(
    "--channel",
    default=CHANNEL,
    show_default=True,
    metavar="CHANNEL",
    help="Take them from this channel of TOPIC. The first channel gets what waits.",
)


def _dead_letters(action: str, topic: str, channel: str, **given: Any) -> None:
    try:
        if backend_of(_app()) != "nsq":
            raise ConfigError(f"NSQ_BACKEND is {backend_of(_app())!r}: it reaches no nsqd")
        keywords = read_settings(_app()).dead_letters_keywords()
        code = run_in_terminal(action, partial(DeadLetters, topic, channel, **keywords), **given)
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    click.get_current_context().exit(code)


# -- the group -----------------------------------------------------------------------------------


class _Group(AppGroup):
    """The group of commands. Log lines that the application shows nowhere go to standard error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in ("consume", "relay"):
            become_first_process([ctx.info_name or "", *args])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with readable_log():
                try:
                    return super().invoke(ctx)
                finally:
                    drop_unwritten()
        except CannotWrite as error:
            raise click.ClickException(str(error)) from error


def _app() -> Flask:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    return app


def _say(text: str) -> None:
    say(sys.stdout, text)


def _mention(text: str) -> None:
    mention(sys.stdout, text)


def _complain(text: str) -> None:
    mention(sys.stderr, f"Error: {text}")
