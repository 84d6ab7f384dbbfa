"""Contexts of messages (``contextvars``): a variable set for one message is unset for the next.

Knows the context of a worker. Must not know a message or a handler.

A worker asks for a maker once, at its start. The maker copies the context of that moment for each
message.

Surprise: Sentry changes the values of its variables in place. A copied context would share them, so
each message gets forks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

__all__ = ["context_maker"]


def context_maker() -> Callable[[], Context]:
    """Return a function that makes a context equal to the caller's context at this moment.

    A worker calls this once, at its start. What runs later on its thread or greenlet outside of a
    message, such as a hook of an Observer, is invisible to messages.

    Sentry keeps its scopes in variables and changes the scopes in place. A copied context would
    share them, so each message gets forks of the scopes that the thread was started with.
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
