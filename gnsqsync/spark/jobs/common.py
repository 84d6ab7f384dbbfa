"""Functions that all jobs share: the SparkSession, and times and paths as users write them.

Knows nothing of single jobs. PySpark is imported when a session is made.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.object_store import SCHEMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET_LOG = os.path.join(os.path.dirname(__file__), "log4j2.properties")
# Names in Hadoop of fsspec's schemes, where they differ.
_HADOOP = {"s3": "s3a", "gcs": "gs", "az": "abfs"}
_AGO = re.compile(r"(\d+)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return the SparkSession of a job: the running one, or a new one.

    ``master`` and ``conf`` (settings of Spark) override spark-submit and spark-defaults.conf. If
    none of them names a master, Spark runs on this machine, ``local[*,4]``. ``quiet``: True to
    silence Spark's own log, unless it is configured elsewhere. Raises ImportError if PySpark is not
    installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            f"a job on Spark needs {error.name}, which is not installed here: pip install"
            ' "gnsqsync[spark]"'
        ) from error
    builder = SparkSession.builder.config("spark.ui.showConsoleProgress", "false")
    if not submitted():
        builder = builder.appName(name)
        # Spark looks at MASTER last. Its own default, local[*], never repeats a failed task.
        os.environ.setdefault("MASTER", "local[*,4]")
        if master is None or master.startswith("local"):
            # PySpark's own choice is any python3 on the path, which may lack our packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if quiet:
            # Log4j reads the variable in the JVM that starts now. A setting of Spark is too late.
            os.environ.setdefault("LOG4J_CONFIGURATION_FILE", _QUIET_LOG)
    if master is not None:
        builder = builder.master(master)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def submitted() -> bool:
    """Return True if spark-submit runs this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def parse_time(text: str, now: datetime) -> datetime:
    """Return a user's point in time in UTC: ISO 8601 (default UTC), or a time before ``now``.

    Examples: "2026-11-20", "2026-11-20T18:30", "2026-11-20 18:30:05.25+01:00", "90m" (90 minutes
    before ``now``; units are s, m, h and d). Raises ConfigError.
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            found = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            found = datetime.fromisoformat(text.strip().upper())
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a time: write 2026-11-20, 2026-11-20T18:30 (UTC) or how long ago,"
            " as 90m, 2h or 7d"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.astimezone(UTC)


def storage_path(path: str, what: str) -> str:
    """Return the absolute path of a path or ``file:`` URI, or the URL of an object store unchanged.

    ``what``: the user's name of the path, for errors. Raises ConfigError for other schemes, and for
    characters that Spark takes for a pattern.
    """
    scheme, colon, _ = path.partition("://")
    if not colon or scheme == "file":
        return local_path(path, what)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{what} {path!r} is not on storage that this knows: set it to a path on a disk that"
            " the driver and all executors share (NFS or the like on a cluster), or to one of"
            f" {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    _check_characters(path, what)
    parts = urlsplit(path)
    if not parts.netloc or not parts.path.strip("/"):
        raise ConfigError(f"{what} {path!r} has no folder: write {scheme}://BUCKET/FOLDER")
    return path.rstrip("/")


def spark_path(path: str) -> str:
    """Return a path of ``storage_path`` in the form of Spark's own file systems."""
    scheme, colon, rest = path.partition("://")
    if not colon:
        # Spark's default file system may be no disk, so the scheme is needed.
        return f"file://{path}"
    return f"{_HADOOP.get(scheme, scheme)}://{rest}"


def join(path: str, *names: str) -> str:
    """Return a path or URL below another."""
    return "/".join([path, *names])


def local_path(path: str, what: str) -> str:
    """Return the absolute path of a path or ``file:`` URI.

    Raises ConfigError for every other scheme, and for characters that Spark takes for a pattern.
    """
    _check_characters(path, what)
    scheme, colon, rest = path.partition(":")
    if colon and re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        if scheme != "file" or urlsplit(path).netloc not in ("", "localhost"):
            raise ConfigError(
                f"{what} {path!r} is not on a file system: set it to a path on a disk that the"
                " driver and all executors share (NFS or the like on a cluster)"
            )
        rest = unquote(urlsplit(path).path)
        if not rest.startswith("/"):
            raise ConfigError(f"{what} {path!r} has no absolute path: write file:///data/nsq")
        return os.path.normpath(rest)
    if not path:
        raise ConfigError(f"{what} is empty: set it to a folder")
    return os.path.abspath(path)


def _check_characters(path: str, what: str) -> None:
    if set(path) & set("*?[]{}\\"):
        raise ConfigError(f"{what} {path!r} has one of * ? [ ] {{ }} \\: choose another name")
