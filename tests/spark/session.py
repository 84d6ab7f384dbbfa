"""The SparkSession of tests and programs here, and what of a process belongs to it.

Loopback only, no UI, no files outside the folder it is given. Importable without pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import realnsq
from tests.support.leftovers import Alive
from tests.support.needs import NoExtra
from tests.support.servers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_TIMEOUT = 30.0

# Spark looks for sources by their modules' files, which an editable install hides from it.
REGISTRATION = ROOT / "gnsqsync" / "spark" / "registration"

# local[2,3]: two tasks at a time, each with three attempts; plain local[2] never retries one.
MASTER = "local[2,3]"


class Unavailable(Exception):
    """Spark cannot run here; the text says why."""


class NoPackage(NoExtra, Unavailable):
    """Spark cannot run without a package of an extra."""


WORKER_PYTHON = ROOT / "tests" / "spark" / "worker_python"


def require() -> None:
    """Raise Unavailable without pyspark, pyarrow or Java."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise NoPackage(package, "spark-test")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise Unavailable("no Java on PATH or in JAVA_HOME; Spark 4 wants Java 17")


def is_ready() -> bool:
    """Whether Spark and the real nsqd are here; a program's stderr says what is not."""
    try:
        require()
        realnsq.find_or_build()
    except (Unavailable, realnsq.Unavailable) as error:
        print(error, file=sys.stderr)
        return False
    return True


def environment() -> dict[str, str]:
    """What a process with Spark in it needs, so that its workers import this checkout."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(WORKER_PYTHON),
        "GNSQSYNC_TEST_PYTHON": sys.executable,
        # The Python of a streaming source, although a worker runs it and not the driver.
        "PYSPARK_DRIVER_PYTHON": str(WORKER_PYTHON),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{REGISTRATION}",
    }


def settings(folder: Path) -> dict[str, str]:
    """Spark's configuration for one process; all its files are under ``folder``."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        # Before 4.2 a run with an end is else a single batch, even if that repeats a failed one.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
    }


def start(folder: Path, master: str = MASTER, **more: str) -> SparkSession:
    """A new session, its JVM as a child of this process. ``more``: settings, _ for the dots."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("gnsqsync tests")
    for key, value in (settings(folder) | more).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    from tests.spark.faulty_source import FaultyDataSource

    session.dataSource.register(FaultyDataSource)
    return session


def stop(session: SparkSession, timeout: float = STOP_TIMEOUT) -> None:
    """Stop it and end its JVM, so that this process is as it was before."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    # The JVM ends when nobody can write to it any more.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout)
    SparkContext._gateway = SparkContext._jvm = None


class Belongings:
    """Tells py4j's threads and the sockets to the JVM from what a test has left behind."""

    def __init__(self) -> None:
        from pyspark import SparkContext

        gateway: Any = SparkContext._gateway
        self._jvm = int(gateway.proc.pid)
        # Its listener and thread would else come with the first foreachBatch of some test.
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(gateway)

    def __call__(self, left: Alive) -> Alive:
        """The part of ``left`` that is Spark's own."""
        threads = {thread for thread in left.threads if _is_spark(thread)}
        sockets = set()
        if left.sockets:
            theirs = _inodes(self._jvm)
            peers = _peers()
            # A connection that the JVM has closed stays in py4j's pool until it is used again.
            sockets = {
                name
                for name in left.sockets
                if peers.get(_inode(name), "") in theirs or peers.get(_inode(name)) == "closed"
            }
        return Alive(threads, set(), sockets, set())


def _is_spark(thread: Any) -> bool:
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.partition(".")[0] in ("py4j", "pyspark") for module in modules)


def _inode(name: str) -> str:
    """Of "7 socket:[12345]"."""
    return name.partition("[")[2].rstrip("]")


def _inodes(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(entry)
        except OSError:
            continue  # closed meanwhile
        if name.startswith("socket:"):
            found.add(_inode(name))
    return found


def _peers() -> dict[str, str]:
    """For each TCP socket on this machine the inode at its other end, "closed" if that hung up."""
    ends: dict[tuple[str, str], str] = {}
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            # An IPv4 address inside IPv6 ends with the same eight digits; loopback is enough here.
            local, remote = (_short(end) for end in words[1:3])
            rows.append((local, remote, words[3], words[9]))
            ends[local, remote] = words[9]
    close_wait = "08"
    return {
        inode: "closed" if state == close_wait else ends.get((remote, local), "")
        for local, remote, state, inode in rows
    }


def _short(end: str) -> str:
    address, _, port = end.partition(":")
    return f"{address[-8:]}:{port}"
