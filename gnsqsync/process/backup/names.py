"""The names of the files of one topic, by the rules of nsq_to_file. Knows no disk."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from gnsqsync.errors import ConfigError

__all__ = ["FileNames", "format_time", "with_revision"]

# English names, which no locale changes: ``_MONTHS``, ``_MONTH_NAMES`` and ``_DAY_NAMES``.
_MONTHS = "January February March April May June July August September October November December"
_MONTH_NAMES = _MONTHS.split()
_DAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

_WORD, _TWO = "[A-Za-z]+", "[0-9]{2}"
# Directives of the Go tool -> the pattern of their values in a name. Others stay unchanged.
_DIRECTIVES = {
    "B": _WORD,
    "b": _WORD,
    "m": _TWO,
    "A": _WORD,
    "a": _WORD,
    "d": _TWO,
    "H": _TWO,
    "I": _TWO,
    "M": _TWO,
    "S": _TWO,
    "Y": "[0-9]{4,}",
    "y": _TWO,
    "p": "[AP]M",
    "Z": "[A-Za-z0-9+-]+",
    "z": "[+-][0-9]{4}",
    "%": "%",
}
# A directive in a name.
_DIRECTIVE = re.compile(f"%([{''.join(_DIRECTIVES)}])")
# Pattern of the revision in a name.
_REV_SHAPE = "-([0-9]{6,})"


def format_time(layout: str, when: time.struct_time) -> str:
    """Format as strftime does, with the Go tool's directives only, and always English names."""

    def value(found: re.Match[str]) -> str:
        match found[1]:
            case "B":
                return _MONTH_NAMES[when.tm_mon - 1]
            case "b":
                return _MONTH_NAMES[when.tm_mon - 1][:3]
            case "A":
                return _DAY_NAMES[when.tm_wday]
            case "a":
                return _DAY_NAMES[when.tm_wday][:3]
            case "p":
                return "PM" if when.tm_hour >= 12 else "AM"
            case "Y":
                return f"{when.tm_year:04d}"
            case _:
                # The other directives are numbers and the zone, which no locale changes.
                return time.strftime(found[0], when)

    return _DIRECTIVE.sub(value, layout)


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of one topic's files, relative to their folder. Made by ``of``."""

    # The format with all words filled in except <DATETIME> and <REV>.
    template: str
    datetime_format: str
    # True if names have a revision. Otherwise there is one file for each <DATETIME>.
    has_revisions: bool
    # Pattern of file names of earlier runs, with any <PID>, <DATETIME> and <REV>.
    shape: re.Pattern[str]

    @classmethod
    def of(
        cls,
        topic: str,
        *,
        filename_format: str,
        datetime_format: str,
        host: str,
        pid: int,
        gzip: bool,
        has_revisions: bool,
    ) -> FileNames:
        """Return the names. ``host``: the value of <HOST>. ConfigError if the format is bad."""
        if has_revisions and "<REV>" not in filename_format:
            raise ConfigError(
                "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
            )
        text = filename_format if has_revisions else filename_format.replace("<REV>", "")
        if gzip and not text.endswith(".gz"):
            text += ".gz"
        shapes = {
            "<TOPIC>": re.escape(topic),
            "<HOST>": re.escape(host),
            "<PID>": "[0-9]+",
            "<DATETIME>": _shape_of_time(datetime_format),
            "<REV>": _REV_SHAPE,
        }
        parts = re.split("(<TOPIC>|<HOST>|<PID>|<DATETIME>|<REV>)", text)
        shape = "".join(shapes.get(part, re.escape(part)) for part in parts)
        for word, value in (("<TOPIC>", topic), ("<HOST>", host), ("<PID>", str(pid))):
            text = text.replace(word, value)
        names = cls(text, datetime_format, has_revisions, re.compile(shape))
        names.at(time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
        return names

    def at(self, when: time.struct_time) -> str:
        """Return the name at that time, with <REV> in it if names have revisions."""
        name = self.template.replace("<DATETIME>", format_time(self.datetime_format, when))
        parts = name.split("/")
        if ".." in parts or not parts[-1] or "\0" in name:
            # A topic may have the name "..".
            raise ConfigError(f"--filename-format makes {name!r}, which is no file in the folder")
        return name.lstrip("/")

    def template_of(self, path: str) -> tuple[str, int] | None:
        """Return the name with <REV>, and the revision, of a file of an earlier run.

        Return None for any other file.
        """
        found = self.shape.fullmatch(path)
        if found is None:
            return None
        if not found.re.groups:
            return path, 0
        start, end = found.span(1)
        return f"{path[: start - 1]}<REV>{path[end:]}", int(found[1])


def with_revision(name: str, number: int) -> str:
    """Return the file name of a revision, 0 or more."""
    return name.replace("<REV>", f"-{number:06d}")


def _shape_of_time(layout: str) -> str:
    parts = _DIRECTIVE.split(layout)
    return "".join(
        _DIRECTIVES[part] if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
