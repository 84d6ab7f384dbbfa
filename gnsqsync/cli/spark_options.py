"""Shared parts of the commands on Spark: options, the session, the window of time.

Knows click and the names of options. Spark is imported when a session is made.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gnsqsync.cli.common import (
    connection_options,
    end_counts_option,
    lookupd_option,
    nsqd_option,
)
from gnsqsync.cli.spark_needs import need_java, need_master, need_packages
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs.common import parse_time, session, submitted
from gnsqsync.spark.jobs.layout import COMPRESSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

# Last sentence of a command's help.
SUBMIT_HINT = (
    "On a cluster put 'spark-submit [ITS OPTIONS] $(gnsqsync spark script)' in the place"
    " of 'gnsqsync spark'."
)


def parse_pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as a dict; a callback of click."""
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs[key] = text
    return pairs


_SPARK_OPTIONS = (
    click.option(
        "--master",
        metavar="URL",
        help="Spark's master: local[2], spark://HOST:7077, yarn."
        " [default: the one of spark-submit or spark-defaults.conf, else local[*,4]]",
    ),
    click.option(
        "--conf",
        callback=parse_pairs,
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark, as in spark-submit; may be given several times.",
    ),
)


_FILE_OPTIONS = (
    click.option(
        "--target-size",
        default=128,
        show_default=True,
        type=click.IntRange(1),
        metavar="MB",
        help="Size of merged files in MB.",
    ),
    click.option(
        "--compression",
        default="zstd",
        show_default=True,
        type=click.Choice(COMPRESSIONS),
        help="Compression of the Parquet files.",
    ),
)


def _with(options: Iterable[Callable[[Command], Command]], command: Command) -> Command:
    """Add the options to the command, in their order."""
    for option in reversed([*options]):
        command = option(command)
    return command


def spark_options(command: Command) -> Command:
    """Add ``--master`` and ``--conf``, which ``job_session`` removes from the keywords again."""
    return _with(_SPARK_OPTIONS, command)


def file_options(command: Command) -> Command:
    """Add ``--target-size`` and ``--compression`` of the files of an archive."""
    return _with(_FILE_OPTIONS, command)


def nsq_options(side: str, example: str) -> Callable[[Command], Command]:
    """Add the options of jobs that connect to NSQ: addresses, --option, --json, TLS, Spark.

    ``side``: "source" or "sink", to which ``--option`` belongs. ``example``: one of its options.
    ``format_options`` and ``job_session`` take the values.
    """
    shared = (
        nsqd_option(),
        lookupd_option(),
        click.option(
            "--option",
            "given",
            callback=parse_pairs,
            multiple=True,
            metavar="KEY=VALUE",
            help=f'An option of the Spark {side} format("nsq"), as {example}; several times.',
        ),
        end_counts_option,
        connection_options,
        spark_options,
    )

    return lambda command: _with(shared, command)


def format_options(
    nsqds: tuple[str, ...], lookupds: tuple[str, ...], connection: dict[str, Any]
) -> dict[str, str]:
    """Return addresses and the result of ``connection_keywords`` as options of ``format("nsq")``.

    Without an address it is the local nsqd.
    """
    options = {}
    if nsqds or not lookupds:
        options["nsqdTcpAddresses"] = ",".join(nsqds or ("127.0.0.1:4150",))
    if lookupds:
        options["lookupdHttpAddresses"] = ",".join(lookupds)
    for name, value in connection.items():
        if name == "tls_verify":
            if not value:
                options["nsq.tls_verify"] = "false"
        elif value is True:
            options[f"nsq.{name}"] = "true"
        elif value:
            options[f"nsq.{name}"] = str(value)
    return options


@contextlib.contextmanager
def job_session(
    name: str, options: dict[str, Any], *, verbose: bool = False
) -> Iterator[SparkSession]:
    """Yield the session of a command that has ``spark_options``, and stop it at the end.

    ``name`` is the application's name. With ``verbose`` Spark's own warnings are shown.
    ClickException if something is missing on this machine, NSQError if Spark does not start.
    """
    master, conf = options.pop("master"), options.pop("conf")
    need_master(master)
    need_packages(name, ("pyspark", "pyarrow"), "spark")
    if not submitted():
        need_java()
    if not verbose:
        # py4j logs a traceback for each failure, and even for a stopped batch. The command prints
        # one sentence.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with spark_errors(verbose):
        spark = session(name, master=master, conf=conf, quiet=not verbose)
    # PySpark's server for accumulators prints a traceback when the JVM ends its connection, as it
    # does when a query is stopped.
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None and not verbose:
        server.handle_error = lambda request, address: None
    try:
        yield spark
    finally:
        spark.stop()


# An exception of gnsqsync in the traceback that Spark brings from another process.
_OURS = re.compile(r"gnsqsync\.(?:\w+\.)*([A-Z]\w+): (.+)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .+$", re.MULTILINE)
# An exception of Java in py4j's text. The line above it only names a method.
_JAVAS = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)


@contextlib.contextmanager
def spark_errors(verbose: bool) -> Iterator[None]:
    """Turn exceptions of Spark, of the disk and of an import into one sentence.

    With ``verbose`` they stay unchanged.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except NSQError:
        raise
    except ImportError as error:
        if verbose:
            raise
        raise click.ClickException(str(error)) from None
    except OSError as error:
        if verbose:
            raise
        raise click.ClickException(storage_error(error)) from None
    except (PySparkException, Py4JError) as error:
        if verbose:
            raise
        text = str(error)
        found = _OURS.findall(text)
        if found:
            kind, sentence = found[-1]
            raise (ConfigError if kind == "ConfigError" else NSQError)(sentence) from None
        lines = _PYTHONS.findall(text)[-1:] or _JAVAS.findall(text) or text.strip().splitlines()
        line = f"Spark: {lines[0]}"
        raise NSQError(f"{line}{room_needed(line)} (--verbose shows it all)") from None


def storage_error(error: OSError) -> str:
    """Return one line for an error of a disk or an object store."""
    if error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = " ".join(str(error).split()) or repr(error)
    return text + room_needed(text)


def room_needed(text: str) -> str:
    """Return the advice for the error of a full disk, or "" for another error.

    The argument is a text, because errors of tasks and of Spark arrive as texts.
    """
    if not any(os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT)):
        return ""
    return (
        "; make room on the disks of the folders given and of Spark's own (spark.local.dir), and"
        " start the same command again, which goes on"
    )


def _parse_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    return None if value is None else parse_time(value, datetime.now(UTC))


def window_options(of: str) -> Callable[[Command], Command]:
    """Add ``--start`` and ``--end``, a half-open window of time, as datetimes in UTC or None."""

    def decorate(command: Command) -> Command:
        for name, text in (("--end", "before"), ("--start", "at or after")):
            command = click.option(
                name,
                callback=_parse_time,
                metavar="TIME",
                help=f"Only {of} {text} this time: 2026-11-20T18:30 (UTC), or 2h, two hours ago.",
            )(command)
        return command

    return decorate
