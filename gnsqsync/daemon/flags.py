"""A parser from command line and config file of a daemon (docs/protocol/limits) to its Options.

Knows the spelling of options. Knows no option by name. Imports neither gevent nor a server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gnsqsync._version import __version__
from gnsqsync.daemon import goflag
from gnsqsync.daemon.goflag import BadValue, Exit, Flag, FlagSet
from gnsqsync.daemon.golog import LEVELS
from gnsqsync.daemon.options import Options, StartError
from gnsqsync.daemon.secrets import shown_option

__all__ = [
    "NSQ_VERSION",
    "config_names",
    "config_value",
    "flag_text",
    "parse",
    "version_text",
]

NSQ_VERSION = "1.3.0"

TLS_VERSIONS = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}
_TLS_REQUIRED = {"false": 0, "tcp-https": 1, "true": 2}


def version_text(program: str) -> str:
    """Return the --version line: the Go programs' form, with this implementation's name.

    Programs parse the line: after ``built w/`` comes one word of ``a-z``, ``0-9``, ``.`` and ``-``.
    """
    word = f"gnsqsync-{__version__}-python{sys.version.split()[0]}".lower()
    return f"{program} v{NSQ_VERSION} (built w/{re.sub('[^a-z0-9.-]', '-', word)})"


def _string(text: str) -> str:
    return text


def _strings(text: str) -> tuple[str, ...]:
    return (text,)


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadValue("parse error") from None


def _log_level(text: str) -> str:
    level = text.lower()
    if level not in LEVELS:
        raise BadValue(f"invalid log level '{level}' (debug, info, warn, error, fatal)")
    return level


def _tls_required(text: str) -> str:
    if text.lower() == "tcp-https":
        return "tcp-https"
    try:
        return "true" if goflag.parse_bool(text) else "false"
    except BadValue:
        raise BadValue(f'strconv.ParseBool: parsing "{text.lower()}": invalid syntax') from None


def _tls_version(text: str) -> str:
    version = text.lower()
    if version and version not in TLS_VERSIONS:
        raise BadValue(f'unknown tlsVersionOption "{version}"')
    return version or "tls1.0"


_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    # kind: (parser of a value, name of the kind in -help)
    "bool": (goflag.parse_bool, ""),
    "int": (goflag.parse_int, "int"),
    "duration": (goflag.parse_duration, "duration"),
    "string": (_string, "string"),
    "strings": (_strings, "value"),
    "floats": (_floats, "value"),
    "log_level": (_log_level, "value"),
    "tls_required": (_tls_required, ""),
    "tls_version": (_tls_version, "value"),
}


_T = TypeVar("_T", bound=Options)

_PROGRAM_FLAGS = (
    Flag("version", goflag.parse_bool, "", "print version string", boolean=True),
    Flag("config", _string, "string", "path to config file (TOML)"),
)


def _help_default(kind: str, value: Any) -> str:
    if kind == "duration":
        return goflag.format_duration(value)
    if kind == "log_level":
        return str(value).upper()
    if kind == "string":
        return f'"{value}"' if value else ""
    if kind == "bool":
        return "true" if value else ""
    return str(value) if value else ""


def flag_set(cls: type[Options]) -> FlagSet:
    """Return the flags of one program."""
    defaults = cls()
    flags = list(_PROGRAM_FLAGS)
    for name, text in cls.without_effect.items():
        flags.append(Flag(name, goflag.parse_bool, "", text, boolean=True))
    for name, option in cls.known.items():
        kind = option.kind
        parse, type_name = _KINDS[kind]
        default = "" if name == "broadcast_address" else getattr(defaults, name)
        flags.append(
            Flag(
                name.replace("_", "-"),
                parse,
                type_name,
                option.help,
                "" if kind == "tls_required" else _help_default(kind, default),
                boolean=kind in ("bool", "tls_required"),
                repeated=kind in ("strings", "floats"),
            )
        )
    return FlagSet(cls.program, flags, cls.introduction)


def _no_warning(text: str) -> None:
    """Drop the warning."""


def parse(
    cls: type[_T], arguments: Sequence[str], warn: Callable[[str], object] = _no_warning
) -> _T:
    """Return the options of a command line and its --config file. Flags win over the file.

    ``warn`` gets a sentence for each key and argument that nothing reads. Raises goflag.Exit
    (unknown flag, -help, --version), StartError (a bad config file) and OptionsError (a value with
    which the program does not start).
    """
    flags = flag_set(cls)
    found = flags.parse(arguments)
    if found.pop("version", False):
        raise Exit(0, out=version_text(cls.program) + "\n")
    path = found.pop("config", "")
    for name in cls.without_effect:
        found.pop(name, None)
    values = _read_config(cls, path, warn) if path else {}
    values |= {name.replace("-", "_"): value for name, value in found.items()}
    if flags.unread:
        warn(
            f"nothing reads {' '.join(flags.unread)!r}: flags begin with '-', and end at the first"
            " argument that does not"
        )
    options = cls(**values)
    options.check()
    return options


def config_names(cls: type[Options]) -> dict[str, str]:
    """Return {name in the config file and in /config/<name>: field} (docs/protocol/limits)."""
    return {option.cfg or name: name for name, option in cls.known.items()}


def _load_toml(path: str) -> dict[str, Any]:
    # The import is here, because most starts have no config file.
    import tomllib

    try:
        with open(path, "rb") as file:
            values: dict[str, Any] = tomllib.load(file)
            return values
    except OSError as error:
        reason = f"open {path}: {os.strerror(error.errno or 0).lower()}"
        raise StartError(f"failed to load config file {path} - {reason}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"failed to load config file {path} - {error}") from None


def _read_config(cls: type[Options], path: str, warn: Callable[[str], object]) -> dict[str, Any]:
    """Return field values from the file.

    Unknown keys do not keep the program from starting, as in Go. The Go program does not warn.
    """
    names = config_names(cls)
    values = {}
    for name, value in _load_toml(path).items():
        if name not in names:
            warn(f"nothing reads the key {name!r} of {path}{_meant(name, names)}")
        else:
            field_name = names[name]
            try:
                values[field_name] = _from_config(cls.known[field_name].kind, value)
            except BadValue as error:
                raise StartError(f"failed parsing {name} {value} - {error}") from None
    return values


def _meant(name: str, names: Mapping[str, str]) -> str:
    # The import is here, because most files have no unknown key.
    from difflib import get_close_matches

    # The key may be a flag's name, with dashes, whose option has another name in the file.
    as_field = name.strip("-").replace("-", "_").lower()
    by_field = {field: key for key, field in names.items()}
    for near in get_close_matches(as_field, [*names, *by_field], 1, 0.75):
        return f"; did you mean {by_field.get(near, near)!r}?"
    return f"; {next(iter(names))!r} and others are known, see -help"


def _from_config(kind: str, value: Any) -> Any:
    """Return a TOML value in the field's type. A number for a duration means milliseconds."""
    parse = _KINDS[kind][0]
    if isinstance(value, bool):
        if kind in ("bool", "tls_required"):
            return parse(str(value).lower())
    elif isinstance(value, str):
        if kind == "strings":
            return tuple(value.split(","))
        return parse(value)
    elif isinstance(value, int):
        if kind == "duration":
            return value / 1000
        if kind == "int":
            return value
    elif isinstance(value, list):
        if kind == "strings" and all(isinstance(item, str) for item in value):
            return tuple(value)
        if kind == "floats" and all(type(item) in (int, float) for item in value):
            return tuple(float(item) for item in value)
    raise BadValue(f"{type(value).__name__} is not {kind}")


def config_value(options: Options, name: str) -> Any:
    """Return the value for GET /config/<name>: a bare str, or a value for JSON
    (docs/protocol/nsqd-http#endpoints).

    Durations are int nanoseconds, log_level 1 to 5, TLS settings Go's numbers. Secrets are removed
    from addresses. KeyError if there is no such option.
    """
    field_name = config_names(type(options))[name]
    kind = options.known[field_name].kind
    value = getattr(options, field_name)
    tables: Mapping[str, Mapping[str, int]] = {
        "log_level": LEVELS,
        "tls_required": _TLS_REQUIRED,
        "tls_version": TLS_VERSIONS,
    }
    if kind == "duration":
        return round(value * 1e9)
    if kind in tables:
        return tables[kind][value]
    value = shown_option(field_name, value)
    return list(value) if isinstance(value, tuple) else value


def flag_text(cls: type[Options], name: str, value: Any) -> list[str]:
    """Return the arguments that set one option. ``name`` is a field name; durations are seconds.

    The tuple or list of a repeatable flag gives several arguments. KeyError if the program has no
    such flag.
    """
    kind = cls.known[name].kind
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [f"{flag}={'true' if value else 'false'}"]
    if kind == "duration" and isinstance(value, (int, float)):
        return [f"{flag}={round(value * 1e9)}ns"]
    if isinstance(value, (list, tuple)):
        return [f"{flag}={item}" for item in value]
    return [f"{flag}={value}"]
