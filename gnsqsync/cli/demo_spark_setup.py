"""What ``gnsqsync demo --spark`` needs on this machine: packages, Java, a folder, a session.

Knows nothing of messages or of what the demo does.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.common import local_path

PICTURE = "report.png"


def require() -> None:
    """Raises ClickException with what to install."""
    packages = ("pyspark", "pyarrow", "matplotlib")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demo on Spark needs {', '.join(missing)}, not installed here:"
            ' pip install "gnsqsync[cli,spark,report]"'
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise click.ClickException(
            f"Spark needs Java 17, and there is no java {where}: install a JDK 17 (on Debian:"
            " apt install openjdk-17-jre-headless), or set JAVA_HOME to one"
        )


@contextmanager
def working_folder(keep: str | None) -> Iterator[str]:
    """Where everything is written. Without ``keep`` only the picture is left, if there is one."""
    if keep is not None:
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
    try:
        yield folder
    finally:
        kept = {PICTURE} if keep is None else {PICTURE, "archive", "rollup"}
        for name in set(os.listdir(folder)) - kept:
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.remove(path)
        if not os.listdir(folder):
            os.rmdir(folder)


def settings(folder: str, tasks: int) -> dict[str, object]:
    """The options of a session for ``tasks`` at a time, all of whose files are below ``folder``."""
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
    # local[2] never retries a task; after a dead worker a retry is needed.
    return {"master": f"local[{cores},4]", "conf": conf}
