"""System checks: problems of settings, handlers and logging, as Django reports them."""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from gnsqsync.django.config import get_alias, in_tests, problems
from gnsqsync.django.handlers import all_handlers
from gnsqsync.errors import ConfigError
from gnsqsync.service.log_output import is_readable

__all__ = ["check_handlers", "check_logging", "check_settings"]

LOGGING_EXAMPLE = """Add it to LOGGING, which Django's own default is merged with:
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "loggers": {"gnsqsync": {"handlers": ["console"], "level": "WARNING"}},
    }"""


def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Wrong keys, options and addresses in GNSQSYNC: gnsqsync.E001 to E003."""
    return [Error(problem.text, hint=problem.hint, id=problem.id) for problem in problems()]


def check_handlers(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Handlers that could not be started: gnsqsync.E004."""
    if [*problems()]:
        return []  # those come first
    found: list[CheckMessage] = []
    for handler in all_handlers():
        try:
            # A test run has the memory backend for handlers, too.
            if not get_alias(handler.alias).is_memory:
                handler.reader()
        except (ImproperlyConfigured, ConfigError) as error:
            found.append(
                Error(
                    f"{handler.where}: {error}.",
                    hint="See the arguments of @nsq_handler.",
                    obj=handler.name,
                    id="gnsqsync.E004",
                )
            )
    return found


def check_logging(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """No handler for the log in production: gnsqsync.W005.

    Not for the commands of ours, which show the log themselves, and not in tests, where Django
    sets DEBUG to False.
    """
    if settings.DEBUG or in_tests() or is_readable() or logging.getLogger("gnsqsync").hasHandlers():
        return []
    return [
        Warning(
            "The logger 'gnsqsync' has no handler: failures and outages go to standard error as"
            " bare text, without time and level.",
            hint=LOGGING_EXAMPLE,
            id="gnsqsync.W005",
        )
    ]
