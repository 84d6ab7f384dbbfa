"""Options of commands, each defined once: type, lower bound, default, unit and sentence.

Knows names and values, and imports little, because a probe starts every few seconds. Must not know
a parser: ``options_click`` and Django's commands render the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gnsqsync.process.probe import DEFAULT_ADDRESS

__all__ = [
    "CONSUME",
    "DOCTOR",
    "HEALTH",
    "JSON",
    "PUBLISH",
    "RELAY",
    "SELECTION",
    "YES",
    "Option",
    "consume_options",
]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command line. ``{default}`` in the help stands for the default.

    ``kind``: type of the value; bool for an option without a value. ``low``: the least value, if
    the parser checks it. ``dest``: keyword of functions that click calls, if it is not ``name``.
    """

    name: str
    help: str
    metavar: str | None = None
    kind: type = str
    default: Any = None
    low: float | None = None
    repeats: bool = False
    dest: str = ""

    @property
    def flag(self) -> str:
        """The name as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def text(self) -> str:
        """The help with the default in its place."""
        return self.help.format(default=self.default)


def _table(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


JSON = Option("json", "One JSON object.", kind=bool, dest="as_json")
YES = Option("yes", "Do not ask.", kind=bool)

DOCTOR = _table(
    Option("channel", "Only this channel."),
    Option(
        "seconds",
        "Seconds between two looks. Take more than a handler needs for a message.",
        kind=float,
        default=2.0,
    ),
    Option("timeout", "Seconds for which a server may be silent.", "SECONDS", float, 5.0),
)
HEALTH = _table(
    Option(
        "address",
        "The --metrics-address of the consumer.",
        "[HOST:]PORT|URL",
        default=DEFAULT_ADDRESS,
    ),
    Option("ready", "Ask /readyz instead of /livez.", kind=bool),
    Option(
        "processes",
        "The --processes of the consumer: ask N ports, from that of --address on.",
        "N",
        int,
        default=1,
        low=1,
    ),
    Option("timeout", "Longest wait for an answer.", "SECONDS", float, 5.0),
)
PUBLISH = _table(
    Option("defer", "Deliver them SECONDS later.", "SECONDS", float),
    Option("timeout", "For each publish. Default: 5.", "SECONDS", float),
)
RELAY = _table(
    Option("batch", "Messages of a transaction. Default: {default}.", "N", int, 100, low=1),
    Option(
        "interval",
        "Between two looks when nothing is due. Default: {default:g}.",
        "SECONDS",
        float,
        default=1.0,
    ),
    Option(
        "rate",
        "Upper bound of messages a second, of use after an hour without a relay.",
        "N",
        float,
    ),
    Option(
        "max_attempts",
        "Refusals by nsqd after which a message has failed for good. Default: {default}.",
        "N",
        int,
        default=10,
        low=1,
    ),
    Option("once", "End when nothing is due.", kind=bool),
    Option("lag", "Count waiting and failed messages, and end.", kind=bool, dest="show_lag"),
    Option("json", "With --lag: a JSON object.", kind=bool, dest="as_json"),
)
# Handlers that a consuming command takes. The names of the keywords are click's.
SELECTION = _table(
    Option("topic", "Only handlers of this topic; repeatable.", repeats=True, dest="topics"),
    Option("channel", "Only handlers of this channel; repeatable.", repeats=True, dest="channels"),
)

# Options of a command that consumes.
CONSUME = _table(
    Option("concurrency", "Number of threads that run the handler.", "N", int, default=1, low=1),
    Option(
        "max_in_flight",
        "Unanswered messages of each handler. Default: as its threads.",
        "N",
        int,
        low=1,
    ),
    Option(
        "processes",
        "Number of processes, each with these threads. A killed one is replaced.",
        "N",
        int,
        default=1,
        low=1,
    ),
    Option("reload", "Start again when a Python file changes.", kind=bool),
    Option(
        "shutdown_timeout",
        "Time that running handlers get after the first signal. Default: {default:g}.",
        "SECONDS",
        float,
        default=30.0,
        low=0,
    ),
    Option(
        "metrics_address",
        "Serve metrics for Prometheus, /livez and /readyz there, on 127.0.0.1 without a host;"
        " with --processes on this port and the next ones.",
        "[HOST:]PORT",
    ),
    Option(
        "handler_limit",
        "/livez fails when a handler runs longer. Default: it may run for ever.",
        "SECONDS",
        float,
    ),
    Option(
        "hard_time_limit",
        "End the process when a handler runs longer; with --processes another one takes its"
        " place. Default: no limit.",
        "SECONDS",
        float,
    ),
    Option(
        "max_messages",
        "Stop a process after N messages; with --processes another one takes its place,"
        " without it the command ends with 0. Default: no limit.",
        "N",
        int,
    ),
    Option(
        "max_memory",
        "Stop a process that uses MB megabytes, in the same way. Default: no limit.",
        "MB",
        int,
    ),
    Option("list", "Show the handlers and end.", kind=bool, dest="show_list"),
)


def consume_options(decorator: str) -> dict[str, Option]:
    """Return the options of a command with handlers that are marked with the decorator."""
    sentence = f"Threads for each handler. Default: as {decorator} says, or 1."
    threads = replace(CONSUME["concurrency"], help=sentence, default=None)
    return {**CONSUME, threads.name: threads}
