"""Exceptions of the user's code: which of them end a worker, and their texts.

Knows exceptions. Must not know a message, a log or a thread.
"""

from __future__ import annotations

import _thread
import os
import sys
import traceback
from collections.abc import Callable

__all__ = ["class_of", "ends_worker", "line_of", "repr_of", "text_of", "traceback_of"]

# Upper bounds in bytes of UTF-8, because an exception may carry a whole document.
_MOST_OF_A_TEXT = 2_000
_MOST_OF_A_TRACEBACK = 8_000


def ends_worker(error: BaseException) -> bool:
    """Return True if the exception ends this thread, greenlet or process.

    Any other exception is a failure of the call that raised it, even if it is no Exception:
    asyncio.CancelledError, GeneratorExit, SystemExit, gevent.Timeout, classes of the user's. Only
    two end a worker: Ctrl-C on the main thread, and GreenletExit in a greenlet, by which greenlets
    are killed.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        # Linux numbers the main thread as its process. Elsewhere each KeyboardInterrupt counts.
        return sys.platform != "linux" or _thread.get_native_id() == os.getpid()
    greenlet = sys.modules.get("greenlet")
    if greenlet is None or not isinstance(error, greenlet.GreenletExit):
        return False
    # The greenlet of a native thread has no parent, and is never killed.
    return greenlet.getcurrent().parent is not None


def text_of(value: object, most: int = _MOST_OF_A_TEXT) -> str:
    """Return ``str(value)`` as text that every log, header and database accepts.

    The text has at most ``most`` bytes of UTF-8. NUL and lone surrogates are escaped. If
    ``__str__`` fails, the text says so. Raises only an exception that ends a worker.
    """
    return _storable(_called(str, value), most)


def repr_of(value: object, most: int = _MOST_OF_A_TEXT) -> str:
    """Return ``repr(value)`` as ``text_of`` returns ``str(value)``."""
    return _storable(_called(repr, value), most)


def line_of(error: BaseException, most: int = _MOST_OF_A_TEXT) -> str:
    """Return the name of the exception's class and its text, on one line."""
    text = " ".join(text_of(error, most).split())
    name = type(error).__name__
    return text_of(f"{name}: {text}" if text else name, most)


def class_of(error: BaseException) -> str:
    """Return the path of the exception's class, as ``package.module.Name``."""
    kind = type(error)
    return f"{text_of(kind.__module__)}.{text_of(kind.__qualname__)}"


def traceback_of(error: BaseException, most: int = _MOST_OF_A_TRACEBACK) -> str:
    """Return the traceback as text like that of ``text_of``, or its end if it is too long.

    The end says what happened, and where.
    """
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failure:
        # The exception is foreign: even its notes, causes and source lines may fail.
        if ends_worker(failure):
            raise
        text = f"{class_of(error)}: {text_of(error)}\n(its traceback failed: {class_of(failure)})\n"
    return _storable(text, most, keeps_end=True)


def _called(function: Callable[[object], str], value: object) -> str:
    try:
        return function(value)
    except BaseException as failure:
        # The method is foreign code, and may raise anything.
        if ends_worker(failure):
            raise
        name = type(value).__name__
        return f"<{name}; its __{function.__name__}__ raised {type(failure).__name__}>"


def _storable(text: str, most: int, *, keeps_end: bool = False) -> str:
    """Escape characters that UTF-8, PostgreSQL or an envelope refuse, and cut the text."""
    # A character has at least one byte, so the rest of a huge text need not be encoded.
    text = text[-most - 1 :] if keeps_end else text[: most + 1]
    data = str.encode(text, "utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(data) <= most:
        return data.decode()
    if keeps_end:
        return "..." + data[3 - most :].decode("utf-8", "ignore")
    return data[: most - 3].decode("utf-8", "ignore") + "..."
