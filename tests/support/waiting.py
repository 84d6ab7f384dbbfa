"""The only polling loop of the tests, for conditions that have no event to wait for."""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds after which a test gives up an event that has to come. A passing test does not wait for
# this limit, so a machine with much else to do has room in it.
LIMIT = 60.0

# Upper bound of a value in the text of a failure, in characters.
_LONGEST = 300

Describe = str | Callable[[], object] | None


def eventually(
    look: Callable[[], T],
    timeout: float = LIMIT,
    *,
    describe: Describe = None,
    pause: float = 0.02,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """Return the first true result of ``look``. AssertionError after ``timeout`` seconds.

    ``describe``: a text about the condition, or a function that returns one at the end. Without it
    the error shows the source of ``look`` and the values of its variables. ``sleep(pause)`` lets
    other tasks run between two looks; it is ``time.sleep`` of that moment.
    """
    sleep = sleep or time.sleep
    deadline = time.monotonic() + timeout
    while not (result := look()):
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(look, timeout, result, describe))
        sleep(pause)
    return result


def _failure(look: Callable[[], Any], timeout: float, result: Any, describe: Describe) -> str:
    wanted = describe if isinstance(describe, str) else _source(look)
    lines = [f"waited {timeout:g} s for: {wanted}", f"the last look gave {_cut(repr(result))}"]
    if callable(describe):
        lines.append(f"in the end there was:\n{describe()}")
    else:
        lines += [f"with {name} = {_cut(text)}" for name, text in _values(look).items()]
    return "\n".join(lines)


def _source(look: Callable[[], Any]) -> str:
    """Return the source of ``look``, or its name."""
    try:
        return textwrap.dedent(inspect.getsource(look)).strip()
    except (OSError, TypeError):
        owner = getattr(look, "__self__", None)
        name = getattr(look, "__qualname__", None) or repr(look)
        return name if owner is None else f"{name} of {owner!r}"


def _values(look: Callable[[], Any]) -> dict[str, str]:
    """Return the present values of the test's variables that ``look`` reads."""
    try:
        found = inspect.getclosurevars(look).nonlocals
    except TypeError:
        return {}
    return {name: repr(value) for name, value in found.items() if not callable(value)}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
