"""Checks of this machine before Spark starts: packages, Java, the master's address, a writable
folder.

Each function raises ClickException, which ends a command with exit code 1.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException

import click

# Oldest version of Java on which every Spark 4 runs.
_JAVA = 17
# The version in java's output: "17.0.15", or "1.8.0_402" up to Java 8.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MASTER = re.compile(r"local|local\[(\d+|\*)(, *\d+)?\]|spark://[^/\s]+:\d+|yarn|k8s://\S+")
# Seconds to connect. Spark would try for a minute, and then say that a context is stopped.
_PATIENCE = 5.0


def need_packages(what: str, packages: Sequence[str], extras: str) -> None:
    """Check that the packages are installed. ``extras``: extras of gnsqsync that have them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{what} needs {' and '.join(missing)}, which {are} not installed here:"
            f' pip install "gnsqsync[{extras}]"'
        )


def need_java() -> None:
    """Check the Java that Spark will use: that of JAVA_HOME if set, else that on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    install = (
        f"install a JDK {_JAVA} (on Debian: apt install openjdk-{_JAVA}-jre-headless), or set"
        " JAVA_HOME to one"
    )
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise click.ClickException(
            f"Spark needs Java {_JAVA} or later, and there is no java {where}: {install}"
        )
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise click.ClickException(
            f"Spark needs Java {_JAVA} or later, and {java} does not run ({error.strerror}):"
            f" {install}"
        ) from None
    found = _VERSION.search(told.stderr + told.stdout)
    if found is not None and int(found[1]) < _JAVA:
        raise click.ClickException(
            f"Spark needs Java {_JAVA} or later, and {java} is Java {found[1]}: {install}"
        )


def need_master(url: str | None) -> None:
    """Check ``--master``: its form, and that a standalone master can be reached.

    ``url`` is None if spark-submit or a configuration file gives the master.
    """
    if url is None:
        return
    if _MASTER.fullmatch(url) is None:
        raise click.ClickException(
            f"--master {url}: Spark has no such master: write local[2], spark://host:7077, yarn or"
            " k8s://https://host:port"
        )
    if not url.startswith("spark://"):
        return
    # Spark needs one of several masters only: spark://a:7077,b:7077.
    reasons = []
    for address in url.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            # Only connect() is used, because a master does not speak HTTP there.
            connection = HTTPConnection(host.strip("[]"), int(port), timeout=_PATIENCE)
            connection.connect()
            connection.close()
            return
        except (OSError, ValueError, OverflowError, HTTPException) as error:
            reasons.append(f"{address}: {error}")
    raise click.ClickException(f"--master {url}: no master can be reached: {'; '.join(reasons)}")


def need_target(option: str, path: str | None) -> None:
    """Check that the folder ``path`` can be written or made. A URL is not checked."""
    if path is None or "://" in path:
        return
    place = os.path.abspath(path.removeprefix("file:"))
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        reason = f"{place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        reason = f"this user may not write in {place}"
    else:
        return
    raise click.ClickException(f"{option} {path}: {reason}; name a folder that can be written")
