"""A place around each call of a handler and around each publish.

Knows messages and what is published; knows no Reader, no Writer and no thread.
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
    """What one call of a Writer publishes. A middleware may change it before it proceeds.

    Attributes:
        topic: Where to.
        bodies: The messages; one, but for ``publish_many()``.
        headers: Those of all the messages; None where the Writer has no headers.
        defer: Seconds until they are delivered; None: at once.
    """

    topic: str
    bodies: Sequence[bytes]
    headers: dict[str, str] | None
    defer: float | None


Publish: TypeAlias = Callable[[Publication], "Future[None] | None"]


class Middleware:
    """Runs around handlers and publishes: override one method or both, pass it as ``middleware=``.

    Of a list the first one is outermost. One object may serve many Readers and Writers.

    Attributes:
        fails_after_handler: False is the promise of a class that its ``handle()`` raises nothing of
            its own after ``proceed()`` has returned. Around a handler with ``once`` the others are
            named in a WARNING at the start: the handler's work is committed by then, so the message
            that comes again is finished without a call, and the middleware's own work is lost. The
            promise does not hold for a subclass with another ``handle()``.
    """

    fails_after_handler: ClassVar[bool] = True

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        """Around the handler of one message.

        What is raised here counts as raised by the handler: the message is requeued, rejected or
        discarded, also when the handler had returned. To skip the handler, return without
        ``proceed``: the message is finished. Each message has a ``contextvars`` context of its own,
        which is also that of the log line about its failure.

        Args:
            message: The message.
            handler: The function that the Reader was given.
            proceed: Calls the next middleware or the handler; call it once.

        Returns:
            What ``proceed`` returned; nobody looks at it but other middlewares.

        Threads:
            On the worker, outside all locks.
        """
        return proceed(message)

    def publish(self, publication: Publication, proceed: Publish) -> Future[None] | None:
        """Around one call of ``publish()``, ``publish_many()`` or ``publish_async()``.

        Args:
            publication: What is published, not encoded yet.
            proceed: Calls the next middleware, or sends; call it once. It raises what the Writer's
                method raises.

        Returns:
            What ``proceed`` returned: None when nsqd has said OK; of ``publish_async()`` a Future.

        Threads:
            On the thread of the caller.
        """
        return proceed(publication)


def check_middleware(given: object, name: str = "middleware") -> tuple[Middleware, ...]:
    """What ``middleware=`` may be: a list of Middlewares. ConfigError otherwise, with ``name``."""
    members = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for member in members:
        if not isinstance(member, Middleware):
            hint = f"; give {member.__name__}()" if isinstance(member, type) else ""
            raise ConfigError(
                f"{name} is {given!r}; it must be a list of gnsqsync.Middleware objects{hint}"
            )
    return members


def overriding(middlewares: Iterable[Middleware], method: str) -> tuple[Middleware, ...]:
    """Those that override ``method``, the innermost first."""
    base = getattr(Middleware, method)
    return tuple(one for one in [*middlewares][::-1] if getattr(type(one), method) is not base)


def fails_after(middlewares: Iterable[Middleware]) -> str:
    """Return the classes of those that may fail after the handler has returned; "" for none.

    A promise counts if the class that has the ``handle()`` made it, or a subclass of that class.
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

    Next to the handler stands the check that it has done its work, which sees what the handler
    returned even if a middleware drops that.
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
    """A publish within its middlewares."""
    call = publish
    for one in innermost_first:
        call = partial(_publish, one, call)
    return call


def _publish(one: Middleware, proceed: Publish, publication: Publication) -> Future[None] | None:
    return one.publish(publication, proceed)
