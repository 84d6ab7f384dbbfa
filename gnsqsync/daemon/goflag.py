"""A parser of command lines by the rules of Go's flag package, with values in Go's syntax.

Knows the form of flags and of errors. Knows no flag of nsqd or nsqlookupd.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
# Patterns that are compiled when a flag needs them. That takes longer than the rest of this module.
_DURATION_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_INT = r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)"
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))
_INT64_MAX = 2**63 - 1


class BadValue(ValueError):
    """A flag's value cannot be parsed. The text is Go's reason ("parse error")."""


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration such as ``250ms``, ``1m30s``, ``-1.5h`` or ``0``.

    Raises BadValue, even for a number without a unit, as Go does.
    """
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if digits == "0":
        return 0.0
    nanoseconds = 0
    position = 0
    while part := re.compile(_DURATION_PART).match(digits, position):
        whole, _, fraction = part[1].partition(".")
        unit = _UNITS[part[2]]
        nanoseconds += int(whole or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        position = part.end()
    if position == 0 or position != len(digits) or nanoseconds > _INT64_MAX:
        raise BadValue("parse error")
    return sign * nanoseconds / 1e9


def format_duration(seconds: float) -> str:
    """Return the duration in Go's form: ``1m0s``, ``250ms``, ``1.5s``, ``0s``."""
    nanoseconds = round(seconds * 1e9)
    sign = "-" if nanoseconds < 0 else ""
    nanoseconds = abs(nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < size * 1000:
            return f"{sign}{_decimal(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)


def parse_int(text: str) -> int:
    """Parse an int64 in decimal, 0x, 0o, 0b or leading-zero octal form. Raises BadValue."""
    if re.fullmatch(_INT, text) is None:
        raise BadValue("parse error")
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    value = int(digits, 8 if octal else 0)
    value = -value if text[0] == "-" else value
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise BadValue("value out of range")
    return value


def parse_bool(text: str) -> bool:
    """Parse a bool in Go's spellings (1 t T true TRUE True and so on). Raises BadValue."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadValue("parse error")


class Exit(Exception):
    """The program must end at once, with the exit status ``status``.

    ``out`` and ``err`` are the texts for stdout and stderr, with line ends.
    """

    def __init__(self, status: int, *, out: str = "", err: str = "") -> None:
        super().__init__(f"exit status {status}")
        self.status = status
        self.out = out
        self.err = err


class Flag(NamedTuple):
    """A flag: its name without dashes, the parser of its value, and its text in -help.

    A ``repeated`` flag collects the values of several occurrences. A ``boolean`` flag needs no
    value. ``default`` is the text after "default" in the help, or "".
    """

    name: str
    parse: Callable[[str], Any]
    type_name: str
    help: str
    default: str = ""
    boolean: bool = False
    repeated: bool = False


class FlagSet:
    """The flags of one program, which parse arguments as Go's flag.FlagSet does.

    ``parse`` returns the given flags, {name: value}. The first argument that is not a flag ends the
    flags. The rest is ignored, as in nsqd, and kept in ``unread``. After a mistake ``parse`` raises
    Exit(2) with Go's words and the usage, and Exit(0) for -h and -help.
    """

    def __init__(self, program: str, flags: Iterable[Flag], introduction: str = "") -> None:
        self.program = program
        self.introduction = introduction
        self.unread: list[str] = []
        self.flags: Mapping[str, Flag] = {f.name: f for f in sorted(flags, key=lambda f: f.name)}

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        rest = list(arguments)
        while rest and len(rest[0]) >= 2 and rest[0][0] == "-" and rest[0] != "--":
            argument = rest.pop(0)
            name = argument[2:] if argument.startswith("--") else argument[1:]
            if not name or name[0] in "-=":
                raise self._mistake(f"bad flag syntax: {argument}")
            name, equals, text = name.partition("=")
            flag = self.flags.get(name)
            if flag is None:
                if name in ("h", "help"):
                    raise Exit(0, err=self.usage())
                raise self._mistake(f"flag provided but not defined: -{name}")
            if not equals:
                if flag.boolean:
                    text = "true"
                elif rest:
                    text = rest.pop(0)
                else:
                    raise self._mistake(f"flag needs an argument: -{name}")
            value = self._value(flag, text)
            found[name] = (*found.get(name, ()), *value) if flag.repeated else value
        self.unread = rest
        return found

    def _value(self, flag: Flag, text: str) -> Any:
        try:
            return flag.parse(text)
        except BadValue as error:
            quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
            if flag.boolean:
                reason = f"invalid boolean value {quoted} for -{flag.name}: {error}"
            else:
                reason = f"invalid value {quoted} for flag -{flag.name}: {error}"
            raise self._mistake(reason) from None

    def _mistake(self, reason: str) -> Exit:
        return Exit(2, err=f"{reason}\n{self.usage()}")

    def usage(self) -> str:
        """Return the text of -help in the layout of Go's PrintDefaults."""
        lines = [f"Usage of {self.program}:"]
        for flag in self.flags.values():
            default = f" (default {flag.default})" if flag.default else ""
            kind = f" {flag.type_name}" if flag.type_name else ""
            lines += [f"  -{flag.name}{kind}", f"    \t{flag.help}{default}"]
        if self.introduction:
            lines += ["", self.introduction]
        return "\n".join(lines) + "\n"
