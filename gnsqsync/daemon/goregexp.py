"""A translator of Go's regular expressions for Python's re. Knows the differences in syntax.

Refuses expressions that Go refuses, and Go's own syntax that has no translation.
"""

from __future__ import annotations

import re

__all__ = ["compile_go"]

_TOKEN = re.compile(
    r"""
      \\Q (?P<quoted> .*? ) (?: \\E | \Z )
    | \\ (?P<escaped> . )
    | (?P<set> \[ \^? \]? (?: \\. | \[:\^?[a-z]+:\] | [^\]\\] )* \] )
    | \(\? (?P<group> <[=!] | P= | < | [=!\#>(] )
    | (?: [*+?] | \{[0-9]+(?:,[0-9]*)?\} ) (?P<possessive> \+ )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_CLASS = re.compile(r"\[:([a-z]+):\]")


def compile_go(text: str) -> re.Pattern[str]:
    """Return the compiled pattern. re.error if Go would refuse it, or Python cannot express it."""
    return re.compile(_TOKEN.sub(_translated, text), re.ASCII)


def _translated(token: re.Match[str]) -> str:
    found = token[0]
    match token.lastgroup:
        case "quoted":
            return re.escape(token["quoted"])
        case "escaped":
            if token["escaped"] in "123456789Z":
                raise re.error(f"invalid escape sequence: {found}")
            return r"\Z" if found == r"\z" else found
        case "set":
            return _CLASS.sub(_class, found)
        case "group":
            if token["group"] != "<":
                raise re.error(f"invalid or unsupported Perl syntax: {found}")
            return "(?P<"
        case "possessive":
            raise re.error(f"invalid nested repetition operator: {found}")
    return found


def _class(name: re.Match[str]) -> str:
    if name[1] not in _CLASSES:
        raise re.error(f"invalid character class range: {name[0]}")
    return _CLASSES[name[1]]
