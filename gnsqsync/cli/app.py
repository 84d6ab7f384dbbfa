"""The command group: its commands, and the exit codes of their errors.

Knows the names of the modules. Each is loaded when its command is called.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from gnsqsync import __version__
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.process.output import drop_unwritten, mention, send_nowhere

# Name of a command -> its module and its line in the list of commands, which loads no module. The
# click command in the module has the same name, with _ for -.
COMMANDS = {
    "demo": ("gnsqsync.cli.demo", "See NSQ at work: two servers, publishers and a consumer."),
    "pub": ("gnsqsync.cli.pub", "Publish each line of a file or of standard input."),
    "tail": ("gnsqsync.cli.tail", "Print the messages of a topic."),
    "consume": ("gnsqsync.cli.consume", "Run a Python function as a consumer."),
    "to-file": ("gnsqsync.cli.to_file", "Write the messages of topics to files, as nsq_to_file."),
    "stat": ("gnsqsync.cli.stat", "Show depths, rates and clients of topics and channels."),
    "doctor": ("gnsqsync.cli.doctor", "Say why messages wait in a cluster, or that all is well."),
    "topic": ("gnsqsync.cli.manage", "Create, delete, empty, pause or unpause a topic."),
    "channel": ("gnsqsync.cli.manage", "Create, delete, empty, pause or unpause a channel."),
    "dead-letters": ("gnsqsync.cli.dead_letters", "List, show, requeue or purge dead letters."),
    "health": ("gnsqsync.cli.health", "Ask a consumer whether it is alive, or ready."),
    "exporter": ("gnsqsync.cli.exporter", "Serve counts of a whole cluster to Prometheus."),
    "cluster": ("gnsqsync.cli.cluster", "Run nsqlookupd, two nsqds and nsqadmin."),
}

# Commands below ``gnsqsync spark``, in the same form.
SPARK = {
    "archive": ("gnsqsync.cli.archive", "Keep the messages of topics as Parquet or Delta."),
    "compact": ("gnsqsync.cli.compact", "Merge the small files of an archive."),
    "replay": ("gnsqsync.cli.replay", "Publish messages of an archive again."),
    "rollup": ("gnsqsync.cli.rollup", "Count an archive by topic and minute."),
    "report": ("gnsqsync.cli.report", "Draw the counts of rollup."),
    "log": ("gnsqsync.cli.spark_log", "List, publish again or delete logs of Spark's queries."),
    "script": ("gnsqsync.cli.spark_script", "Print the path of the script for spark-submit."),
}

# Commands that gnsqsync.cli.main handles before click. They are here for the list of commands.
SERVERS = {
    "nsqd": "Run the embedded nsqd, for development and tests.",
    "nsqlookupd": "Run the embedded nsqlookupd, for development and tests.",
    "nsqadmin": "Serve the web page and JSON API of a whole cluster.",
}

# The commands in the order of the help page, by heading. Those of Spark have their own heading.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Use": ("demo", "pub", "tail", "consume", "to-file"),
    "Operate": ("stat", "doctor", "topic", "channel", "dead-letters", "health", "exporter"),
    "Servers": ("cluster", *SERVERS),
}

# Old name of a command -> its name below ``gnsqsync spark``. The old names go with version 0.2.
RENAMED = {
    **{name: name for name in ("archive", "compact", "replay", "rollup", "report")},
    "spark-log": "log",
    "spark-script": "script",
}

_ASKS_FOR_HELP = "gnsqsync.help"


class Commands(click.Group):
    """A group that loads the module of a command when the command is called."""

    modules: Mapping[str, tuple[str, str]] = SPARK

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_section(formatter, "Commands", self.commands)

    def write_section(
        self, formatter: click.HelpFormatter, heading: str, names: Iterable[str]
    ) -> None:
        """Write a heading of the help page, and a line for each command below it."""
        with formatter.section(heading):
            formatter.write_dl([(name, self.commands[name].help or "") for name in names])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.modules:
            return self.commands.get(name)
        module = importlib.import_module(self.modules[name][0])
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ASKS_FOR_HELP] = not {"-h", "--help"}.isdisjoint(args)
        with _broken_pipe_kept():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _broken_pipe_kept(ctx):
            return super().invoke(ctx)


class Program(Commands):
    """The outermost group: headings in its help page, and the old names of renamed commands."""

    modules: Mapping[str, tuple[str, str]] = COMMANDS

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in GROUPS.items():
            self.write_section(formatter, heading, names)
        with formatter.section("Spark"):
            formatter.write_dl([(f"spark {name}", text) for name, (_, text) in SPARK.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and (name := RENAMED.get(args[0])) is not None:
            # The shell completes a line with an old name, too, and shows standard error.
            if not ctx.resilient_parsing:
                mention(
                    sys.stderr,
                    f"gnsqsync: 'gnsqsync {args[0]}' is now 'gnsqsync spark {name}';"
                    " the next version no longer has the old name",
                )
            args = ["spark", name, *args[1:]]
        return super().parse_args(ctx, args)


# Commands that only show something. Their work is done when their output has no reader any more.
_SHOWING = {"tail", "stat", "doctor", "health", "dead-letters", "spark log", "spark script"}


class ReaderLeft(Exception):
    """The output has no reader any more, as after ``gnsqsync stat orders | head -3``.

    ``command``: the command that was cut short, or None for a help page and the like.
    """

    def __init__(self, command: str | None) -> None:
        super().__init__(command)
        self.command = command


@contextmanager
def _broken_pipe_kept(ctx: click.Context | None = None) -> Iterator[None]:
    # click itself would end the program with exit code 1 after a broken pipe.
    try:
        yield
    except BrokenPipeError as error:
        if ctx is None or ctx.meta[_ASKS_FOR_HELP]:
            raise ReaderLeft(None) from error
        command = f"{ctx.command_path} {ctx.invoked_subcommand}"
        raise ReaderLeft(command.removeprefix("gnsqsync ")) from error


def _unloaded(texts: Mapping[str, str]) -> dict[str, click.Command]:
    """Return every command with its help, unloaded, for the list and for "did you mean"."""
    return {name: click.Command(name, help=text) for name, text in texts.items()}


def _texts(modules: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    return {name: text for name, (_, text) in modules.items()}


@click.command(
    cls=Program,
    commands=_unloaded({**_texts(COMMANDS), **SERVERS}),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. 'gnsqsync COMMAND --help' shows examples.",
)
@click.version_option(__version__, prog_name="gnsqsync")
def gnsqsync() -> None:
    """Publish to NSQ, consume from it, and watch it.

    Without an address a command talks to the nsqd on this machine. Never used NSQ?
    'gnsqsync demo' starts two servers, sends them some thousand messages and shows what happens.
    """


def _led(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error with the options that the name means in other clients, if it is one."""
    # Imported here: only a misspelt name needs the table of names.
    from gnsqsync.hints import meant

    given = [] if error.ctx is None else error.ctx.command.params
    options = [option for one in given for option in one.opts if option.startswith("--")]
    known = {option[2:].replace("-", "_"): option for option in options}
    # An option that may be repeated has the singular of the argument's name.
    known |= {f"{name}es": option for name, option in known.items() if name.endswith("address")}
    names = re.findall(r"'(\w+)'", meant(error.option_name, known))
    found = " or ".join(dict.fromkeys(known[name] for name in names if name in known))
    if not found:
        return error
    text = f"No such option '{error.option_name}'. Did you mean {found}?"
    return click.NoSuchOption(error.option_name, text, ctx=error.ctx)


@gnsqsync.command(
    cls=Commands,
    commands=_unloaded(_texts(SPARK)),
    epilog="Example: gnsqsync spark archive orders --channel archive --to /data/nsq",
)
def spark() -> None:
    """Archive topics with Spark; compact, replay, count and draw archives."""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command. Return its exit code, after one sentence on stderr for a foreseen error."""
    try:
        code = gnsqsync.main(list(arguments), prog_name="gnsqsync", standalone_mode=False)
        drop_unwritten()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _led(error)
        with suppress(OSError):  # Standard error may have no reader.
            error.show()
        return error.exit_code
    except ConfigError as error:
        _complain(error)
        # A missing package is a failure (1). A wrong name, address or option is wrong usage (2).
        return 1 if isinstance(error.__cause__, ImportError) else 2
    except NSQError as error:
        _complain(error)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ReaderLeft as left:
        send_nowhere(sys.stdout)
        if left.command is None or left.command in _SHOWING:
            return 0
        _complain(NSQError(f"{left.command} was cut short: a pipe that it writes to has no reader"))
        return 1


def _complain(error: NSQError) -> None:
    text = str(error).replace("\n", " ")
    mention(sys.stderr, f"gnsqsync: {text}")
