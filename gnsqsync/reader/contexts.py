"""Contexts of messages (``contextvars``): a variable that is set in one is not set in the next.

Knows the context of a worker; knows no message and no handler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

__all__ = ["context_maker"]


def context_maker() -> Callable[[], Context]:
    """Return a function that makes a context equal to that of the caller at this moment.

    A worker asks once, at its start. Nothing that runs later on its thread or greenlet outside of
    a message, such as a hook of an Observer, is seen by a message.

    Sentry keeps its scopes in variables and changes the scopes in place. A copied context would
    share them, so each message gets forks of those that the thread was started with.
    """
    start = copy_context()
    scopes = [(variable, value) for variable, value in start.items() if _is_scope(value)]
    if not scopes:
        return start.copy

    def make() -> Context:
        context = start.copy()
        context.run(_fork, scopes)
        return context

    return make


def _is_scope(value: object) -> bool:
    package = type(value).__module__.partition(".")[0]
    return package == "sentry_sdk" and hasattr(value, "fork")


def _fork(scopes: list[tuple[ContextVar[Any], Any]]) -> None:
    for variable, scope in scopes:
        variable.set(scope.fork())
