"""The options of a program as frozen objects: names, defaults, kinds of values.

Knows neither the spelling of options (flags.py) nor their effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from gnsqsync.daemon.secrets import shown_option

__all__ = ["Option", "Options", "OptionsError", "StartError", "is_loopback", "option"]


class OptionsError(Exception):
    """A server cannot start with these options. The text is Go's, the exit status is 1.

    The log line is ``failed to instantiate <program> - <text>``.
    """


class StartError(OptionsError):
    """A server cannot start (config file, metadata). The log line is the text alone."""


def is_loopback(address: str) -> bool:
    """Return True if a listen address, or a unix path, is reachable from this machine only."""
    host, colon, _ = address.rpartition(":")
    if not colon:
        return True
    host = host.strip("[]")
    if host in ("localhost", "127.0.0.1"):
        return True
    # The import is here, because most servers listen on one of the hosts above.
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name may lead to any address.


class Option(NamedTuple):
    """An option of a program."""

    kind: str
    default: Callable[[], Any]
    help: str
    cfg: str
    """Name in the config file, if it differs from the field's name."""


def option(
    kind: str, default: Any, text: str, *, cfg: str = "", factory: Callable[[], Any] | None = None
) -> Any:
    """Return an Option, typed Any so that a class can annotate the value. ``factory``: default."""
    return Option(kind, (lambda: default) if factory is None else factory, text, cfg)


class Options:
    """Frozen values of options, given by keyword.

    A dataclass would do the same, but takes a tenth of nsqd's start to import and to build.
    """

    program: ClassVar[str]
    introduction: ClassVar[str] = ""
    """Text of -help below the flags."""
    without_effect: ClassVar[dict[str, str]] = {"verbose": "[deprecated] has no effect"}
    """Flags that are accepted without effect, and their texts in -help."""
    known: ClassVar[dict[str, Option]]
    """Options by field name."""

    def __init_subclass__(cls) -> None:
        cls.known = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.known.keys()
        if unknown:
            # Imported here: only a misspelt name needs it.
            from gnsqsync.hints import did_you_mean

            close = did_you_mean(min(unknown), self.known)
            hint = "" if close is None else f"; did you mean {close!r}?"
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}{hint}")
        for name, one in self.known.items():
            self.__dict__[name] = given[name] if name in given else one.default()
        self._settle()

    def _settle(self) -> None:
        """Set the values that depend on other values."""

    def check(self) -> None:
        """Raise OptionsError, with Go's text, for a value with which the program does not start."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use replace()")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        values = {name: shown_option(name, value) for name, value in vars(self).items()}
        return f"{type(self).__name__}({values!r})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.

        Args:
            **changes: The fields that differ, by name.

        Raises:
            TypeError: There is no field of such a name.
        """
        return type(self)(**{**vars(self), **changes})
