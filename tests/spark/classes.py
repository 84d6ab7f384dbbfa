"""Spark's classes, read once for all JVMs of the tests: a third of what each of them computes.

A JVM loads and checks some ten thousand classes before the first row. Java's class data sharing
keeps them as they are in memory, in a file beside PySpark, and other JVMs map that.
``python -m tests.spark.classes`` makes the file. Where it is not, or does not fit, JVMs load
classes as ever.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.spark import session as sessions
from tests.support.servers import ROOT

# Many JVMs that live for seconds, on few processors: C2 and several GC threads compile and wait
# longer than they help, which is 40 % of the processor time. Benchmarks take Java as it is.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# A file that does not fit is no news; programs' stdout is read.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"

# A JVM, a few jobs and the writing of the file, on a machine that others use, too.
_LIMIT = 150.0


def share() -> None:
    """For each JVM that this process and its children start from now on; safe to repeat."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)
    if "SPARK_SUBMIT_OPTS" not in os.environ:
        found = find_or_make()
        shared = "" if found is None else f" -XX:SharedArchiveFile={found} {_QUIET}"
        os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED + shared


def find_or_make() -> Path | None:
    """The file, made by whoever comes first; None where it cannot be made."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    target = home / "tests.jsa"
    if not os.access(home, os.W_OK):
        return target if target.exists() else None
    with open(home / "tests.jsa.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Java takes no file that is older than a jar.
        if not target.exists() or target.stat().st_mtime < (home / "jars").stat().st_mtime:
            _make(target)
    return target if target.exists() else None


def _make(target: Path) -> None:
    part = target.with_suffix(".part")
    environment = {
        **os.environ,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={part} {_QUIET}",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.classes", "--work"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
    if done.returncode == 0 and part.exists():
        part.replace(target)


def _work() -> None:
    """What most tests do: rows from Python, files, a streaming query with batches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = sessions.start(folder)
        rows = spark.createDataFrame(
            [(b"x", "orders", n) for n in range(9)], "a binary, b string, n int"
        )
        rows.repartition(2).write.partitionBy("b").parquet(str(folder / "table"))
        table = spark.read.parquet(str(folder / "table"))
        assert table.groupBy("b").count().collect()[0]["count"] == 9
        spark.readStream.schema(table.schema).parquet(
            str(folder / "table")
        ).writeStream.foreachBatch(lambda batch, _: batch.count()).trigger(
            availableNow=True
        ).option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
        sessions.stop(spark, _LIMIT)


def main(words: list[str]) -> int:
    """Makes the file where there is none, and prints where it is."""
    try:
        sessions.require()
    except sessions.Unavailable as error:
        # The tests of Spark are skipped, or fail and say the same.
        print(error)
        return 0
    if words == ["--work"]:
        _work()
    else:
        print(find_or_make() or "no file: each JVM loads its classes by itself")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
