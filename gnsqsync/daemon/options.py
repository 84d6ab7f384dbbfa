"""Options of a program as frozen objects: names, defaults, kinds of values.

Knows neither how a command line or a config file spells them (flags.py), nor what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from gnsqsync.daemon.secrets import shown_option

__all__ = ["Option", "Options", "OptionsError", "StartError", "is_loopback", "option"]


class OptionsError(Exception):
    """A server cannot start with these options; the Go program's text, exit status 1.

    Logged as ``failed to instantiate <program> - <text>``.
    """


class StartError(OptionsError):
    """A server cannot start; the text is logged as it stands (config file, metadata)."""


def is_loopback(address: str) -> bool:
    """Whether a listen address can be reached from this machine only. A path is a unix socket."""
    host, colon, _ = address.rpartition(":")
    if not colon:
        return True
    host = host.strip("[]")
    if host in ("localhost", "127.0.0.1"):
        return True
    # Here, as most listen nowhere else.
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, wherever it leads


class Option(NamedTuple):
    """One option of a program."""

    kind: str
    default: Callable[[], Any]
    help: str
    cfg: str
    """Its name in the config file, where that is another."""


def option(
    kind: str, default: Any, text: str, *, cfg: str = "", factory: Callable[[], Any] | None = None
) -> Any:
    """An Option, where a class names its value's type. ``factory``: makes the default."""
    return Option(kind, (lambda: default) if factory is None else factory, text, cfg)


class Options:
    """Frozen values of options, given by keyword.

    As a dataclass would be, which takes a tenth of nsqd's start to import and to build.
    """

    program: ClassVar[str]
    introduction: ClassVar[str] = ""
    """What -help says below the flags."""
    without_effect: ClassVar[dict[str, str]] = {"verbose": "[deprecated] has no effect"}
    """Flags that are taken and do nothing, and what -help says of them."""
    known: ClassVar[dict[str, Option]]
    """All options, by field name."""

    def __init_subclass__(cls) -> None:
        cls.known = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.known.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        for name, one in self.known.items():
            self.__dict__[name] = given[name] if name in given else one.default()
        self._settle()

    def _settle(self) -> None:
        """Sets what depends on other values."""

    def check(self) -> None:
        """OptionsError, with the Go program's text, for a value that it does not start with."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use replace()")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        values = {name: shown_option(name, value) for name, value in vars(self).items()}
        return f"{type(self).__name__}({values!r})"

    def replace(self, **changes: Any) -> Self:
        """The same with other values."""
        return type(self)(**{**vars(self), **changes})
