"""Middleware: code around each call of a handler and around each publish.

Knows messages and publications. Must not know a Reader, a Writer or a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from gnsqsync.errors import ConfigError
from gnsqsync.message import Message
from gnsqsync.options import check_ran

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = [
    "Handler",
    "Middleware",
    "Publication",
    "Publish",
    "around_handler",
    "around_publish",
    "check_middleware",
    "fails_after",
    "overriding",
]

Handler: TypeAlias = Callable[[Message], object]


@dataclass(slots=True)
class Publication:
    """The messages that one call of a Writer publishes. A middleware may change them first.

    Attributes:
        topic: Name of the topic.
        bodies: The messages; one, except for ``publish_many()``.
        headers: Headers of all the messages; None if the Writer has no headers.
        defer: Seconds until they are delivered; None: at once.
    """

    topic: str
    bodies: Sequence[bytes]
    headers: dict[str, str] | None
    defer: float | None


Publish: TypeAlias = Callable[[Publication], "Future[None] | None"]


class Middleware:
    """Runs around handlers and publishes: override one method or both, pass it as ``middleware=``.

    The first of a list is outermost. One object may serve many Readers and Writers.

    Attributes:
        fails_after_handler: False is the promise of a class that its ``handle()`` raises nothing of
            its own after ``proceed()`` has returned. For a handler with ``once``, a WARNING at the
            start names the other classes. The handler's work is committed by then, so the message
            that comes again is finished without a call, and the middleware's own work is lost. The
            promise does not hold for a subclass with another ``handle()``.

    Threads:
        Workers and publishers call it at the same time, each on its own thread or greenlet.
    """

    fails_after_handler: ClassVar[bool] = True

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        """Run around the handler of one message.

        An exception raised here counts as raised by the handler: the message is requeued, rejected
        or discarded, even if the handler had returned. To skip the handler, return without a call
        of ``proceed``; the message is then finished. Each message has its own ``contextvars``
        context, which the log line about its failure has, too.

        Args:
            message: The message for the handler.
            handler: The function that the Reader was given.
            proceed: Calls the next middleware or the handler. Call it once.

        Returns:
            The result of ``proceed``. Only other middlewares see it.

        Threads:
            On the worker, outside all locks.
        """
        return proceed(message)

    def publish(self, publication: Publication, proceed: Publish) -> Future[None] | None:
        """Run around one call of ``publish()``, ``publish_many()`` or ``publish_async()``.

        Args:
            publication: The messages, not encoded yet.
            proceed: Calls the next middleware, or sends. Call it once. It raises the errors of the
                Writer's method.

        Returns:
            The result of ``proceed``, which is None after nsqd's OK, or a Future for
            ``publish_async()``.

        Threads:
            On the thread of the caller.
        """
        return proceed(publication)


def check_middleware(given: object, name: str = "middleware") -> tuple[Middleware, ...]:
    """Return the Middlewares in a value of ``middleware=``. ConfigError with ``name`` if wrong."""
    members = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for member in members:
        if not isinstance(member, Middleware):
            hint = f"; give {member.__name__}()" if isinstance(member, type) else ""
            raise ConfigError(
                f"{name} is {given!r}; it must be a list of gnsqsync.Middleware objects{hint}"
            )
    return members


def overriding(middlewares: Iterable[Middleware], method: str) -> tuple[Middleware, ...]:
    """Return the middlewares that override ``method``, the innermost first."""
    base = getattr(Middleware, method)
    return tuple(one for one in [*middlewares][::-1] if getattr(type(one), method) is not base)


def fails_after(middlewares: Iterable[Middleware]) -> str:
    """Return the classes that may fail after the handler has returned; "" for none.

    A promise counts if the class with the ``handle()`` made it, or a subclass of that class.
    """
    kinds = {type(one) for one in overriding(middlewares, "handle") if not _promises(type(one))}
    return ", ".join(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds))


def _promises(middleware: type[Middleware]) -> bool:
    for kind in middleware.__mro__:
        if "fails_after_handler" in vars(kind):
            return not middleware.fails_after_handler
        if "handle" in vars(kind):
            break
    return False


def around_handler(middlewares: Iterable[Middleware], handler: Handler) -> Handler:
    """Put the handler within its middlewares.

    Next to the handler stands the check that it has done its work. The check sees the handler's
    result even if a middleware drops it.
    """

    def innermost(message: Message) -> object:
        returned = handler(message)
        if returned is not None:
            check_ran(returned, message)
        return returned

    call: Handler = innermost
    for one in overriding(middlewares, "handle"):
        call = partial(_handle, one, handler, call)
    return call


def _handle(one: Middleware, handler: Handler, proceed: Handler, message: Message) -> object:
    return one.handle(message, handler, proceed)


def around_publish(innermost_first: Iterable[Middleware], publish: Publish) -> Publish:
    """Put a publish within its middlewares."""
    call = publish
    for one in innermost_first:
        call = partial(_publish, one, call)
    return call


def _publish(one: Middleware, proceed: Publish, publication: Publication) -> Future[None] | None:
    return one.publish(publication, proceed)
