"""System checks: problems of the settings and of the handlers, as Django reports them."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from gnsqsync.django.config import get_alias, problems
from gnsqsync.django.handlers import all_handlers
from gnsqsync.errors import ConfigError

__all__ = ["check_handlers", "check_settings"]


def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Wrong keys, options and addresses in GNSQSYNC: gnsqsync.E001 to E003."""
    return [Error(problem.text, hint=problem.hint, id=problem.id) for problem in problems()]


def check_handlers(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Handlers that could not be started: gnsqsync.E004."""
    if [*problems()]:
        return []  # those come first
    found = []
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
