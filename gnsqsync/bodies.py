"""Bodies as objects: msgspec or pydantic decodes and checks them before a handler gets them.

Knows these two libraries. Checks nothing itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gnsqsync.errors import ConfigError
from gnsqsync.foreign import text_of
from gnsqsync.keywords import checks_names
from gnsqsync.message import NOT_OF_THE_MESSAGE, Message, Reject
from gnsqsync.options import check_handler

__all__ = ["typed"]

T = TypeVar("T")

# Upper bound in bytes of the text that says what is wrong with a body.
_MOST_OF_A_REASON = 300


@checks_names
def typed(
    body: type[T], *, name: str = "handler"
) -> Callable[[Callable[[Message, T], object]], Callable[[Message], object]]:
    """Return a decorator for a function that takes a message and its body as a ``body``.

    A body that is not the JSON of one means ``Reject``: ``@typed(Order)`` above
    ``def handle(message, order)``.

    Args:
        body: A pydantic model, a msgspec Struct, a dataclass, or another type that the installed
            library takes. If both are installed, msgspec comes first.
        name: Name of the function in errors.

    Returns:
        A decorator.

    Raises:
        ConfigError: No installed library takes the type. The decorator raises it if the function
            does not take two arguments.
    """
    decode = _decoder(body)

    def wrap(function: Callable[[Message, T], object]) -> Callable[[Message], object]:
        check_handler(name, function, "a message", "its body")
        return _Typed(function, _name(body), decode)

    return wrap


class _Typed:
    """Handler that is called with a message alone."""

    def __init__(
        self,
        function: Callable[[Message, Any], object],
        body: str,
        decode: Callable[[bytes], Any],
    ) -> None:
        # The attribute of any decorator, by which log lines name the function.
        self.__wrapped__ = function
        self._body = body
        self._decode = decode
        ended = getattr(function, "worker_ended", None)
        if ended is not None:
            self.worker_ended = ended

    def __call__(self, message: Message) -> object:
        try:
            decoded = self._decode(message.body)
        except NOT_OF_THE_MESSAGE:
            raise
        except Exception as error:
            # The libraries raise their own errors, UnicodeDecodeError, RecursionError and others,
            # and a user's validators may raise more. Each would see the same body at the next
            # attempt.
            raise Reject(f"the body is no {self._body}: {_what(error)}") from error
        return self.__wrapped__(message, decoded)


def _name(body: Any) -> str:
    return getattr(body, "__name__", None) or str(body)


def _decoder(body: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes a body, or raises an Exception if it does not fit."""
    pydantic, msgspec = _library("pydantic"), _library("msgspec")
    if pydantic is not None and hasattr(body, "__pydantic_validator__"):
        msgspec = None
    try:
        if msgspec is not None:
            return cast("Callable[[bytes], Any]", msgspec.json.Decoder(body).decode)
        if pydantic is not None:
            return cast("Callable[[bytes], Any]", pydantic.TypeAdapter(body).validate_json)
    except Exception as error:
        # Each library has several errors for a type that it does not take.
        raise ConfigError(f"body is {body!r}: {error}") from error
    raise ConfigError(
        f"body is {_name(body)}; it needs msgspec or pydantic:"
        ' pip install "gnsqsync[msgspec]" or "gnsqsync[pydantic]"'
    )


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _what(error: Exception) -> str:
    """Return what is wrong, on one line. msgspec has a line, pydantic a list."""
    text = text_of(error, _MOST_OF_A_REASON) or type(error).__name__
    pydantic = _library("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        first, *others = error.errors(include_url=False, include_context=False, include_input=False)
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
        if others:
            text += f" (and {len(others)} more)"
    return text_of(" ".join(text.split()), _MOST_OF_A_REASON)
