"""What the commands on Spark need of this machine, looked at before Spark starts: packages, Java,
a master's address, a folder that can be written.

Knows how to look and what to say. Each function raises ClickException, with which a command ends
with exit code 1.
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

# The oldest Java that every Spark 4 runs on.
_JAVA = 17
# As java prints it: "17.0.15", and "1.8.0_402" up to Java 8.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MASTER = re.compile(r"local|local\[(\d+|\*)(, *\d+)?\]|spark://[^/\s]+:\d+|yarn|k8s://\S+")
# Seconds. Spark itself tries for a minute, and then says that a context is stopped.
_PATIENCE = 5.0


def need_packages(what: str, packages: Sequence[str], extras: str) -> None:
    """``extras``: those of gnsqsync that bring them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{what} needs {' and '.join(missing)}, which {are} not installed here:"
            f' pip install "gnsqsync[{extras}]"'
        )


def need_java() -> None:
    """The Java that Spark will take: of JAVA_HOME when that is set, else on the PATH."""
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
    """What ``--master`` says: an address in Spark's form, and where a standalone master answers.

    None: somebody else says it.
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
    # One of several is enough: spark://a:7077,b:7077.
    reasons = []
    for address in url.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            # For its connect() only: a master does not speak HTTP there.
            connection = HTTPConnection(host.strip("[]"), int(port), timeout=_PATIENCE)
            connection.connect()
            connection.close()
            return
        except (OSError, ValueError, OverflowError, HTTPException) as error:
            reasons.append(f"{address}: {error}")
    raise click.ClickException(f"--master {url}: no master can be reached: {'; '.join(reasons)}")


def need_target(option: str, path: str | None) -> None:
    """The folder ``path`` can be written, or made. A URL is tried when it is used."""
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
