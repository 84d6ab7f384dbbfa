"""System checks: problems of settings, handlers and logging, as Django reports them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from gnsqsync.django.config import get_alias, in_tests, problems
from gnsqsync.django.handlers import Handler
from gnsqsync.django.known_handlers import Known, claims, known_handlers
from gnsqsync.errors import ConfigError
from gnsqsync.middleware import fails_after
from gnsqsync.process.handler_claims import problems_of_claims
from gnsqsync.process.log_output import disabled_loggers, is_readable, takes_warnings

__all__ = ["check_handlers", "check_logging", "check_settings"]

LOGGING_EXAMPLE = """Add it to LOGGING, which Django's own default is merged with:
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"dated": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "dated"}},
        "loggers": {"gnsqsync": {"handlers": ["console"], "level": "WARNING"}},
    }"""


def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Report wrong keys, options and addresses in GNSQSYNC: gnsqsync.E001 to E003."""
    return [Error(problem.text, hint=problem.hint, id=problem.id) for problem in problems()]


def check_handlers(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Report handlers that could not be started, or that lose messages or work.

    gnsqsync.E004 for one handler, E007 for two that claim one channel, W008 and W009 for ``once``.
    """
    if [*problems()]:
        return []  # check_settings reports these, and they come first
    found: list[CheckMessage] = []
    for known in known_handlers():
        try:
            # With the memory backend, as in a test run, no Reader can be made.
            if get_alias(known.handler.alias).is_memory:
                known.handler.check()
            else:
                known.handler.reader()
        except (ImproperlyConfigured, ConfigError) as error:
            found.append(
                Error(
                    f"{known.where}: {error}.",
                    hint="See the arguments of @nsq_handler.",
                    obj=known.handler.name,
                    id="gnsqsync.E004",
                )
            )
        else:
            found += _warnings_of_once(known)
    found += [
        Error(
            f"{problem}.",
            hint="nsqd delivers each message of a channel to one consumer only.",
            id="gnsqsync.E007",
        )
        for problem in problems_of_claims(claims())
    ]
    return found


def _warnings_of_once(known: Known) -> Iterator[CheckMessage]:
    handler: Handler = known.handler
    if handler.once is None:
        return
    names = fails_after(get_alias(handler.alias).middleware_with(handler.options))
    if names:
        yield Warning(
            f"{known.where}: if the middleware {names} fails after the handler has returned, its"
            " own work is lost: the message counts as handled.",
            hint="Set fails_after_handler = False in a middleware that cannot fail there, or do its"
            " work in the handler.",
            obj=handler.name,
            id="gnsqsync.W008",
        )
    if handler.misses_keys:
        yield Warning(
            f"{known.where}: messages that GNSQSYNC[{handler.alias!r}] publishes have no headers"
            " and so no key; once=True rejects them.",
            hint=f"Set 'headers': True in GNSQSYNC[{handler.alias!r}]['OPTIONS'], unless only other"
            " programs publish to this topic.",
            obj=handler.name,
            id="gnsqsync.W009",
        )


def check_logging(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Report a set-up of logging that hides failures, or shows them without time: gnsqsync.W005.

    Nothing is reported while this package shows its log itself, as its commands do. Tests are left
    out, because they set DEBUG to False and are no production.
    """
    if in_tests() or is_readable():
        return []
    reason = _why_log_is_hidden()
    if reason is None:
        return []
    return [Warning(reason, hint=LOGGING_EXAMPLE, id="gnsqsync.W005")]


def _why_log_is_hidden() -> str | None:
    disabled = disabled_loggers()
    if disabled:
        return (
            f"LOGGING disables loggers that exist before it, such as {disabled[0]!r}: failures and"
            " outages are shown nowhere in web processes. It needs 'disable_existing_loggers':"
            " False, or the logger 'gnsqsync'."
        )
    logger = logging.getLogger("gnsqsync")
    if not logger.hasHandlers():
        if settings.DEBUG:
            return None
        return (
            "The logger 'gnsqsync' has no handler: failures and outages go to standard error as"
            " bare text, without time and level."
        )
    if logger.isEnabledFor(logging.WARNING) and not takes_warnings(logger):
        return (
            "No handler takes warnings of the logger 'gnsqsync', by their levels and filters:"
            " failures and outages are shown nowhere in web processes."
        )
    return None
