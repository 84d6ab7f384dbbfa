"""The commands on dead letters: list, show, requeue, purge.

Knows no framework and no terminal: options are values by the names of OPTIONS, lines go to
functions.
"""

from __future__ import annotations

import base64
import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from gnsqsync.commands.options import Option
from gnsqsync.dead_letters import DeadLetter, DeadLetters, Filter
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.process.signals import ending, handled
from gnsqsync.stats import counted

__all__ = ["ACTIONS", "OPTIONS", "Terminal", "options_of", "run"]

# Help of each command.
ACTIONS = {
    "list": "List the dead letters in TOPIC, a line each: time of death (UTC), id, attempts, the"
    " topic/channel that gave it up, and the reason.",
    "show": "Show one dead letter: reason, traceback, headers, body.",
    "requeue": "Publish dead letters to the topic that they came from, and finish each when nsqd"
    " has said OK. All channels of that topic get them, even those that had handled them.",
    "purge": "Throw dead letters away.",
}
# Text below each help.
ABOUT = (
    "nsqd cannot be browsed: letters are received, held, and requeued at the end. So each look"
    " counts as a delivery of the letter. If the command is killed, nsqd delivers the letters again"
    " after its --msg-timeout."
)


_CHOOSING = ("list", "requeue", "purge")
# Options, and the commands that have them.
OPTIONS: tuple[tuple[Option, tuple[str, ...]], ...] = (
    (
        Option(
            "reason", "Only letters with this text in the reason or the exception's type.", "TEXT"
        ),
        _CHOOSING,
    ),
    (Option("older_than", "Only letters that died longer ago: 30m, 12h or 7d.", "AGE"), _CHOOSING),
    (Option("newer_than", "Only letters that died within this time.", "AGE"), _CHOOSING),
    (Option("id", "Only this letter; may be given several times.", "ID", repeats=True), _CHOOSING),
    (Option("from_topic", "Only letters that came from this topic.", "TOPIC"), _CHOOSING),
    (Option("from_channel", "Only letters that this channel gave up.", "CHANNEL"), _CHOOSING),
    (Option("to", "Publish the letters to this topic instead.", "TOPIC"), ("requeue",)),
    (Option("rate", "Upper bound of letters a second.", "N"), ("requeue",)),
    (Option("dry_run", "Only list the letters, and change nothing.", kind=bool), _CHOOSING[1:]),
    (Option("limit", "Letters to look at. Default: 1000; with an ID all.", "N"), tuple(ACTIONS)),
    (Option("json", "A JSON object for each letter.", kind=bool), ("list", "show")),
)

_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# The limit for a search by id, because the letter may be the last one.
_ALL = 1_000_000
# Upper bound of shown bytes of a binary body.
_SHOWN = 512


def options_of(action: str) -> Iterator[Option]:
    """Return the options of a command, except ``yes`` of purge."""
    return (option for option, actions in OPTIONS if action in actions)


class Terminal(NamedTuple):
    """Functions for lines and questions. ``width``: columns, or None without a terminal."""

    say: Callable[[str], object]
    tell: Callable[[str], object]
    confirm: Callable[[str], bool]
    width: int | None = None


def run(
    action: str,
    make: Callable[..., DeadLetters],
    given: Mapping[str, Any],
    terminal: Terminal,
    *,
    id: str = "",
    yes: bool = False,
) -> int:
    """Run a command. Return the exit code. ConfigError if an option is wrong.

    ``make`` is called with ``limit``, if given. ``given``: values by the names of OPTIONS. ``id``:
    the letter of show. ``yes``: purge does not ask.
    """
    limit = given.get("limit")
    where = filter_of(given)
    rate = _number("rate", given.get("rate"))
    more: dict[str, int] = {}
    if limit is not None:
        more["limit"] = _whole("limit", limit)
    elif id or where.ids:
        more["limit"] = _ALL
    letters = make(**more)
    with letters:
        commands = _Commands(letters, where, terminal)
        if action == "show":
            code = commands.show(id, bool(given.get("json")))
        elif action == "list" or given.get("dry_run"):
            code = commands.list(action, bool(given.get("json")))
        elif action == "requeue":
            code = commands.requeue(given.get("to") or None, rate)
        else:
            code = commands.purge(yes)
    return code


def filter_of(given: Mapping[str, Any]) -> Filter:
    """Return the filter for values by the names of OPTIONS."""
    return Filter(
        reason=given.get("reason") or "",
        older_than=_age("older_than", given.get("older_than")),
        newer_than=_age("newer_than", given.get("newer_than")),
        ids=tuple(given.get("id") or ()),
        topic=given.get("from_topic") or "",
        channel=given.get("from_channel") or "",
    )


class _Commands:
    """A run of a command, inside the ``with`` of its letters."""

    def __init__(self, letters: DeadLetters, where: Filter, terminal: Terminal) -> None:
        self._letters = letters
        self._where = where
        self._terminal = terminal
        self._failures: Counter[str] = Counter()
        self._topics: set[str] = set()
        # Number of the signal that ended the look, or 0.
        self._signal = 0

    def list(self, action: str, as_json: bool) -> int:
        """List letters. The other commands do the same with ``dry_run``."""
        shown = 0
        with self._signals():
            for letter in self._letters:
                if self._where.matches(letter):
                    self._say(letter, as_json)
                    shown += 1
        what = {"requeue": "would be requeued", "purge": "would be purged"}.get(action, "listed")
        return self._end(f"{counted(shown, 'letter')} {what}")

    def show(self, id: str, as_json: bool) -> int:
        where = Filter(ids=[id])
        with self._signals():
            for letter in self._letters:
                if where.matches(letter):
                    for line in [json_of(letter)] if as_json else text_of(letter):
                        self._terminal.say(line)
                    return 0
        return self._end(f"no letter {id}") or 1

    def requeue(self, to: str | None, rate: float | None) -> int:
        with self._signals():
            tally = self._letters.requeue_all(self._where, to=to, rate=rate, told=self._count)
        if tally.done:
            topics = to or ", ".join(sorted(self._topics))
            self._terminal.tell(f"all channels of {topics} get them, not only the one they left")
        return self._end(f"{counted(tally.done, 'letter')} requeued", tally.error)

    def purge(self, yes: bool) -> int:
        with self._signals():
            if yes:
                tally = self._letters.purge_all(self._where, told=self._count)
                return self._end(f"{counted(tally.done, 'letter')} purged", tally.error)
            found = [letter for letter in self._letters if self._where.matches(letter)]
        if self._signal or not found:
            return self._end("0 letters purged")
        # The letters are held during the question, so the counted ones are purged.
        if not self._terminal.confirm(
            f"Purge {counted(len(found), 'letter')} of {self._letters.looked_at:,}"
            f" in {self._letters.topic}?"
        ):
            self._terminal.tell("nothing was changed")
            return 1
        done = 0
        for letter in found:
            try:
                self._letters.purge(letter)
                done += 1
            except NSQError as wrong:
                self._count(letter, wrong)
        return self._end(f"{counted(done, 'letter')} purged")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let the first signal that ends a program end the look.

        A second signal has its usual effect, except SIGHUP, which a closed terminal sends twice.
        """
        forcing = ExitStack()

        def handle(number: int, frame: object) -> None:
            if number != signal.SIGHUP:
                forcing.close()
            self._signal = number
            self._letters.stop()

        with ExitStack() as stack:
            # On another thread than the main one, this command handles no signals.
            with suppress(ValueError):
                numbers = {*ending()}
                stack.enter_context(handled(numbers & {signal.SIGHUP}, handle))
                stack.enter_context(forcing)
                forcing.enter_context(handled(numbers - {signal.SIGHUP}, handle))
            yield

    def _say(self, letter: DeadLetter, as_json: bool) -> None:
        line = json_of(letter) if as_json else line_of(letter, self._terminal.width)
        self._terminal.say(line)

    def _count(self, letter: DeadLetter, error: NSQError | None) -> None:
        self._topics.add(letter.topic)
        if error is not None:
            self._failures[str(error).replace(letter.id, "ID").replace("\n", " ")] += 1

    def _end(self, what: str, error: NSQError | None = None) -> int:
        """Print the result. Return the exit code."""
        letters, tell = self._letters, self._terminal.tell
        for text, failed in self._failures.items():
            tell(f"{counted(failed, 'letter')} failed and stay: {text}")
        for problem in letters.problems:
            tell(problem)
        rest = f"{counted(letters.looked_at, 'letter')} looked at"
        if letters.waiting is None:
            rest += "; how many wait is not known"
        elif letters.waiting > letters.looked_at:
            rest += f" of {letters.waiting:,} that wait"
        tell(f"{what}; {rest}")
        if self._signal:
            tell("stopped by a signal; the other letters stay")
            return 128 + self._signal
        if error is not None:
            tell("that failure ended it; the other letters stay")
        elif letters.looked_at >= letters.limit and letters.looked_at != letters.waiting:
            tell(f"there may be more: --limit is {letters.limit}")
        elif letters.waiting is not None and letters.looked_at < letters.waiting:
            tell("the others did not come: another consumer of the channel may have them")
        return 1 if self._failures or letters.problems or error is not None else 0


# -- one letter as text --------------------------------------------------------------------------


def line_of(letter: DeadLetter, width: int | None) -> str:
    """Return the letter's line for a list, cut to ``width`` columns."""
    origin = f"{letter.topic}/{letter.channel}" if letter.topic else "-"
    why = letter.reason or ("-" if letter.topic else "(no headers)")
    utc = letter.time.utctimetuple()[:6]
    when = "{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z".format(*utc)
    line = printable(f"{when}  {letter.id}  {letter.attempts or '-':>3}  {origin}  {why}")
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def json_of(letter: DeadLetter) -> str:
    """Return the letter as one JSON object, with ``body_base64`` if the body is not UTF-8."""
    fields: dict[str, Any] = {
        name: getattr(letter, name) for name in DeadLetter.__slots__ if name != "body"
    }
    for name in ("first_time", "time"):
        fields[name] = fields[name] and fields[name].isoformat()
    fields["headers"] = dict(letter.headers)
    try:
        fields["body"] = letter.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(letter.body).decode()
    return json.dumps(fields)


def text_of(letter: DeadLetter) -> Iterator[str]:
    """Yield the lines of the whole letter, for people."""
    came_from = f"{letter.topic}/{letter.channel} at nsqd {letter.origin_nsqd}"
    rows = [
        ("id", letter.id),
        ("came from", came_from if letter.topic else "unknown: it has no headers"),
        ("published", _time(letter.first_time)),
        ("died", _time(letter.time) + (f", for the {letter.deaths}. time" * (letter.deaths > 1))),
        ("attempts", str(letter.attempts or "")),
        ("handler", letter.handler),
        ("reason", letter.reason),
        ("exception", letter.error),
        ("text", letter.text if letter.text != letter.reason else ""),
        ("lies at", f"nsqd {letter.nsqd}, as {letter.message_id}"),
        ("looks", f"{letter.delivered}, this one included"),
    ]
    for name, value in rows:
        if value:
            first, *more = value.splitlines()
            yield f"{name:<10} {printable(first)}"
            yield from (f"{'':<10} {printable(line)}" for line in more)
    yield from _section("headers", [f"{name}: {value}" for name, value in letter.headers.items()])
    yield from _section("traceback", letter.traceback.splitlines())
    kind, lines = body_lines(letter.body)
    yield from _section(f"body: {counted(len(letter.body), 'byte')}, {kind}", lines)


def body_lines(body: bytes) -> tuple[str, Sequence[str]]:
    """Return the kind of the body, and its lines."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if any(not each.isprintable() and each not in "\r\n\t" for each in text):
        rows = [body[start : start + 16] for start in range(0, min(len(body), _SHOWN), 16)]
        lines = [f"{row.hex(' '):<47}  {_ascii(row)}" for row in rows]
        return "binary", [*lines, *(["..."] if len(body) > _SHOWN else [])]
    try:
        # Deep JSON may be readable, but too deep to be written with indents.
        return "JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return "text", text.splitlines()


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def _section(name: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield name
        yield from (f"  {printable(line)}" for line in lines)


def _time(when: Any) -> str:
    return when.isoformat(sep=" ", timespec="milliseconds") if when else ""


def printable(text: str) -> str:
    """Return the text without control characters, because a letter may contain any."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


# -- values of options ---------------------------------------------------------------------------


def _age(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    parts = _AGE.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{_flag(name)} is {text!r}; it must be an age, as 90s, 30m, 12h or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value < float("inf"):
        raise ConfigError(f"{_flag(name)} is {text!r}; it must be a number, 0.001 or more")
    return value


def _whole(name: str, text: str) -> int:
    if re.fullmatch("0*[1-9][0-9]{,8}", text) is None:
        raise ConfigError(f"{_flag(name)} is {text!r}; it must be a whole number, 1 or more")
    return int(text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
