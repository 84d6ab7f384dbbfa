"""Keywords that a call does not have: an error, or a note, with the right name.

Knows functions and errors. The table of names and ``inspect`` are loaded only for a wrong keyword,
because the embedded servers import classes that are checked, and must start quickly.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import NoReturn, ParamSpec, TypeVar

from gnsqsync.errors import ConfigError

__all__ = ["checks_names", "checks_names_in", "checks_names_of", "note_right_name", "refuse_names"]

P = ParamSpec("P")
T = TypeVar("T")


def refuse_names(call: str, unknown: Collection[str], known: Collection[str]) -> NoReturn:
    """Raise ConfigError about an unknown keyword of a call, with the name that was meant."""
    # Imported here: only a misspelt name needs the table of names.
    from gnsqsync.hints import meant

    name = min(unknown)
    hint = meant(name, known)
    raise ConfigError(f"{call} has no option {name!r}{'; ' if hint else ''}{hint}") from None


def checks_names(function: Callable[P, T]) -> Callable[P, T]:
    """Make a call with an unknown keyword a ConfigError that names the right one.

    Not for publishes of a Writer, which must be fast: Python's own TypeError names the keyword.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*arguments, **keywords)
        except TypeError:
            import inspect

            known = inspect.signature(function).parameters
            unknown = keywords.keys() - known.keys()
            if not unknown:
                raise
            name = function.__qualname__.removesuffix(".__init__")
            refuse_names(name, unknown, known.keys() - {"self"})

    return call


def checks_names_in(*methods: str) -> Callable[[type[T]], type[T]]:
    """Make these methods of a class check the names of keywords."""

    def change(kind: type[T]) -> type[T]:
        for name in methods:
            setattr(kind, name, checks_names(kind.__dict__[name]))
        return kind

    return change


_UNEXPECTED = re.compile(r"(\w+)\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def note_right_name(error: BaseException, *kinds: type) -> None:
    """Add the right name to Python's TypeError about an unknown keyword of a method of ``kinds``.

    For errors of handlers. Publishes and answers are too frequent for ``checks_names``.
    """
    if type(error) is not TypeError or not error.args or not isinstance(error.args[0], str):
        return
    found = _UNEXPECTED.match(error.args[0])
    if found is None:
        return
    for kind in kinds:
        method = getattr(kind, found[2], None) if kind.__name__ == found[1] else None
        if method is not None:
            import inspect

            from gnsqsync.hints import meant

            hint = meant(found[3], inspect.signature(method).parameters.keys() - {"self"})
            if hint:
                error.add_note(hint)


def checks_names_of(kind: type[T]) -> type[T]:
    """Make the constructor of a dataclass check the names of keywords."""
    made = kind.__init__
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    setattr(kind, "__init__", checks_names(made))  # noqa: B010 - mypy forbids the assignment
    return kind
