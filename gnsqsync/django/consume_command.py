"""The base of the commands that consume: options, limits, processes, signals.

Knows handlers. Does not know which of them a command chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, SystemCheckError
from django.db import connections

from gnsqsync.commands.integrations import listing, run_consumers
from gnsqsync.commands.options import consume_options
from gnsqsync.django.command import NSQCommand
from gnsqsync.django.handlers import Handler
from gnsqsync.django.known_handlers import claims
from gnsqsync.django.writers import all_writers, close_writers
from gnsqsync.errors import ConfigError
from gnsqsync.process.handler_claims import check_claims
from gnsqsync.process.hard_limit import HardLimit
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.process.output import mention, say
from gnsqsync.process.process_limits import ProcessLimits
from gnsqsync.process.reload import waiting_for_repair

__all__ = ["CONSUME", "ConsumeCommand"]

CONSUME = consume_options("@nsq_handler")


class ConsumeCommand(NSQCommand):
    """Runs Readers for handlers until a signal comes."""

    is_worker: bool = True

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command. With --reload, wait for a repair if a file fails at the start."""
        say_so = partial(mention, self.stdout)
        with waiting_for_repair(bool(options.get("reload")), say_so, always=(SystemCheckError,)):
            return super().execute(*args, **options)

    def consume(self, choose: Callable[[], Sequence[Handler]], options: dict[str, Any]) -> None:
        """Run the handlers that ``choose()`` returns. Its ConfigError ends the command."""
        timeout = options["shutdown_timeout"]
        if not timeout >= 0:  # nan is not
            raise CommandError("--shutdown-timeout must be 0 or more")
        try:
            handlers = choose()
            if options["list"]:
                self._list(handlers)
                return
            check_claims(claims())
            limits = {name: options[name] for name in ("concurrency", "max_in_flight")}
            exposed = Exposed(options["metrics_address"], options["handler_limit"])
            # The Readers are made, and so checked, before anything is forked.
            named = [(h.name, h.reader(exposed=exposed, **limits)) for h in handlers]
            hard_limit = HardLimit(options["hard_time_limit"], named)
            of_process = ProcessLimits(options["max_messages"], options["max_memory"])
        except (ConfigError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        _close_connections()
        code = run_consumers(
            named,
            say=partial(mention, self.stdout),
            complain=lambda text: mention(self.stderr, self.style.ERROR(text)),
            processes=options["processes"],
            reload=options["reload"],
            stop_timeout=timeout,
            hard_limit=hard_limit,
            limits=of_process,
            before_fork=_before_fork,
            at_end=close_writers,
            around=lambda number: exposed.serve(
                [reader for _, reader in named], number, partial(mention, self.stdout), all_writers
            ),
        )
        if code:
            raise CommandError("not stopped cleanly", returncode=code)

    def say(self, text: str) -> None:
        say(self.stdout, text)

    def _list(self, handlers: Sequence[Handler]) -> None:
        rows = [("name", "topic", "channel", "alias", "function")]
        rows += [(h.name, h.topic, h.channel, h.alias, h.where) for h in handlers]
        for line in listing(rows):
            self.say(line)


def _close_connections() -> None:
    # System checks may have opened connections (JSONField on SQLite does, since Django 6.1). From
    # now on only the workers ask the database. An open transaction belongs to a test that calls the
    # command, so its connection stays.
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _before_fork() -> None:
    # Parent and child must not share a session of the database, so all are closed before the fork.
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
