"""Runs the tests of sink, source and archive on each PySpark, with its oldest and newest PyArrow.

Each version has an environment of its own, kept in ~/.cache/gnsqsync. Prints a table::

    python -m tests.spark.versions [--only 4.0] [--quick]

``--quick`` runs one file, that goes once through sink, source and archive. Needs pip and Java.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

from tests.spark import session
from tests.support.servers import ROOT

HOME = Path.home() / ".cache" / "gnsqsync" / "spark"
# The newest release of each; and the oldest PyArrow that the extra ``spark`` allows, which PySpark
# 4.2 and later want, too.
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
PYARROWS = ("pyarrow==18.0.0", "pyarrow")
QUICK = ["tests/spark/test_round_trip.py"]
ALL = [
    *QUICK,
    "tests/spark/test_stream_reader.py",
    "tests/spark/test_source.py",
    "tests/spark/test_semantics.py",
    "tests/spark/test_batch.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_reached.py",
    "tests/spark/test_archive.py",
]
# What these files import.
NEEDED = (
    "pytest>=7.4",
    "pytest-timeout>=2.2",
    "pytest-xdist>=3.6",
    "hypothesis>=6.80",
    "trustme>=1.1",
)


def environment(version: str) -> Path:
    """The Python of an environment with this PySpark, made unless it is there."""
    folder = HOME / version
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install(python, f"pyspark=={version}.*", *NEEDED, "-e", f"{ROOT}[cli,prometheus]")
    return python


def install(python: Path, *packages: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", "-U", *packages], check=True)


def versions_in(python: Path) -> tuple[str, ...]:
    """Of PySpark, PyArrow and Python."""
    code = (
        "import platform, pyarrow, pyspark;"
        "print(pyspark.__version__, pyarrow.__version__, platform.python_version())"
    )
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return tuple(found.stdout.split())


def run(python: Path, files: list[str]) -> str:
    """pytest's last line, which is shown as it goes along; or how it ended without one."""
    # A slow machine needs long to start Spark; the limit is for the tests.
    words = [python, "-m", "pytest", "-q", "-n", "0", "-m", "not campaign"]
    words += ["-o", "timeout_func_only=true", *files]
    last = ""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    found = re.search(r"\d+ (?:passed|failed|skipped|error).*?(?= in )", last)
    return found[0] if found else f"pytest ended with {process.returncode}"


def table(rows: list[tuple[str, ...]]) -> str:
    """As RST."""
    rows = [("PySpark", "PyArrow", "Python", "Tests"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=VERSIONS, help="this PySpark alone")
    parser.add_argument("--quick", action="store_true", help="one file of tests")
    given = parser.parse_args()
    if not session.is_ready():
        return 2
    rows = []
    for version in [given.only] if given.only else VERSIONS:
        python = environment(version)
        for pyarrow in PYARROWS:
            install(python, pyarrow)
            found = versions_in(python)
            print(f"+ PySpark {found[0]}, PyArrow {found[1]}", flush=True)
            began = time.monotonic()
            rows.append((*found, run(python, QUICK if given.quick else ALL)))
            print(f"+ {time.monotonic() - began:.0f} s", flush=True)
    print(table(rows))
    return 0 if all(" passed" in row[-1] and "failed" not in row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
