"""The needs of ``gnsqsync demo --spark`` on this machine: packages, Java, a folder, a session.

Does not know messages or the steps of the demo.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gnsqsync.cli.spark_needs import need_java, need_packages, need_target
from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.common import local_path

PICTURE = "report.png"


def require() -> None:
    """Raise ClickException with the missing packages, if any."""
    need_packages("the demo on Spark", ("pyspark", "pyarrow", "matplotlib"), "cli,spark,report")
    need_java()


@contextmanager
def working_folder(keep: str | None) -> Iterator[str]:
    """Yield the folder for all files. Without ``keep`` only the picture is left, if any."""
    if keep is not None:
        need_target("--keep", keep)
        folder = local_path(keep, "--keep")
        if ";" in folder:
            raise ConfigError(f"--keep {keep}: choose a name without ;")
        try:
            os.makedirs(folder, exist_ok=True)
            if os.listdir(folder):
                raise ConfigError(f"--keep {keep}: the folder is not empty; name a new one")
        except OSError as error:
            raise ConfigError(f"--keep {keep}: {error.strerror}") from None
    else:
        folder = tempfile.mkdtemp(prefix="gnsqsync-demo-")
    # The nsqds and Spark write their files below this folder, too.
    before, tempfile.tempdir = tempfile.tempdir, os.path.join(folder, "tmp")
    os.mkdir(tempfile.tempdir)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        clean(folder, keep)


def clean(folder: str, keep: str | None, *, stopped: bool = False) -> None:
    """Remove temporary files of the working folder. ``stopped``: the demo was cut short."""
    if keep is not None:
        kept = {PICTURE, "archive", "rollup"}
    else:
        kept = set() if stopped else {PICTURE}
    for name in set(os.listdir(folder)) - kept:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)
    if not os.listdir(folder):
        os.rmdir(folder)


def settings(folder: str, tasks: int) -> dict[str, object]:
    """Return the options of a session for ``tasks`` at a time with its files below ``folder``."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = os.path.join(folder, "spark")
    os.mkdir(spark)
    cores = max(2, min(tasks, os.cpu_count() or 1))
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={spark}",
        "spark.local.dir": spark,
        "spark.sql.warehouse.dir": os.path.join(spark, "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    # local[2] never retries a task, but a killed worker needs a retry.
    return {"master": f"local[{cores},4]", "conf": conf}
