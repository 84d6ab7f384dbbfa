"""Runs what needs Spark packages of Maven Central, in an environment whose PySpark they are for.

First the tests on Delta Lake and Avro, then a campaign of kills whose archive is a Delta
table. Delta-rs counts the rows, which knows nothing of Spark::

    python -m tests.spark.maven [--pyspark 4.2] [--messages 1000000] [--kills 10] [--seed N]

Needs pip, Java and Maven Central.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gnsqsync.spark.jobs.delta import SETTINGS, SPARKS, package
from gnsqsync.spark.jobs.layout import DELTA_LOG, Place
from gnsqsync.spark.stores import Store
from tests.spark import versions
from tests.support.servers import ROOT

TESTS = ("tests/spark/test_delta.py", "tests/spark/test_avro.py")
# Takes minutes.
KILLS = "tests/spark/test_delta.py::test_every_number_is_in_the_table_once_under_kill_9"
# The newest release of Spark's package that Maven Central has for each.
AVRO = {"4.0": "4.0.2", "4.1": "4.1.1", "4.2": "4.2.0"}
_MAVEN = "https://repo1.maven.org/maven2/"


def environment(pyspark: str) -> dict[str, str]:
    """With this each session of this PySpark ("4.2.0") has the packages; empty without a Delta."""
    coordinates = package(pyspark)
    if coordinates is None:
        return {}
    avro = f"org.apache.spark:spark-avro_2.13:{AVRO[pyspark.rpartition('.')[0]]}"
    words = ["--packages", f"{coordinates},{avro}"]
    for key, value in SETTINGS.items():
        words += ["--conf", f"{key}={value}"]
    return {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}


def is_here() -> bool:
    """Whether this process has the packages, by ``environment``."""
    return "delta-spark" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")


def is_table(store: Store) -> bool:
    return DELTA_LOG in store.folders()


def count(archive: Place) -> int:
    """The rows of a table, as Delta-rs counts them."""
    import deltalake

    rows = deltalake.DeltaTable(archive.path).to_pyarrow_dataset().count_rows()
    assert isinstance(rows, int)
    return rows


def values(archive: Place) -> Iterator[bytes]:
    """The bodies in a table, as Delta-rs reads them."""
    import deltalake

    for batch in deltalake.DeltaTable(archive.path).to_pyarrow_dataset().to_batches(["value"]):
        yield from batch.column(0).to_pylist()


def is_reachable(coordinates: str) -> bool:
    """Whether Maven Central gives this package."""
    group, artifact, version = coordinates.split(":")
    folder = f"{_MAVEN}{group.replace('.', '/')}/{artifact}/{version}"
    try:
        with urllib.request.urlopen(f"{folder}/{artifact}-{version}.pom", timeout=20):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def main() -> int:
    """The exit status: 0, 1 when a test failed or a message is lost or there twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pyspark", choices=SPARKS, default=SPARKS[-1])
    parser.add_argument(
        "--here", action="store_true", help="the short tests, with the PySpark of this Python"
    )
    given, campaign = parser.parse_known_args()
    if given.here:
        python = Path(sys.executable)
        coordinates = package(versions.versions_in(python)[0])
        if coordinates is None or not is_reachable(coordinates):
            print(f"{_MAVEN} has no Delta for this: nothing of it is tested", file=sys.stderr)
            return 0
    else:
        python = versions.environment(given.pyspark)
        versions.install(python, "deltalake>=1")
    own = environment(versions.versions_in(python)[0])
    tests = [python, "-m", "pytest", "-q", "-n", "0", "-m", "system or campaign", *TESTS]
    if given.here:
        tests += ["--deselect", KILLS]
    status = subprocess.run(tests, cwd=ROOT, env=os.environ | own, check=False).returncode
    if status or given.here:
        return min(status, 1)
    kills = [python, "-m", "tests.spark.kills", "--format", "delta", *campaign]
    return subprocess.run(kills, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
