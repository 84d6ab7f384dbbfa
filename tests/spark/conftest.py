"""What the Spark tests share: one session, one cluster of nsqds, and a fresh topic for each test.

Tests import pyspark inside, not at the top, so that they are skipped where it is not installed.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.spark import classes
from tests.spark import session as sessions
from tests.spark.nsqds import Cluster, OwnCluster, fresh_topic
from tests.support import leftovers, realnsq
from tests.support.needs import missing
from tests.support.servers import Pool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent

# PySpark 4.0 leaves the socket of each collect() to the garbage collector.
_UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


# For a test here that sets no limit itself, in seconds: each JVM takes half a minute to its first
# batch on a slow machine. What a test runs is ended with it.
_LIMIT = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LIMIT))
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(_UNCLOSED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail, a test whose need is not here."""
    # Here and not in the fixtures, so that all these skips have one place and are reported as one.
    wanted = getattr(item, "fixturenames", ())
    try:
        if "pyspark" in wanted or "whole_spark" in wanted:
            sessions.require()
            classes.share()
        if "real_nsqd" in wanted:
            realnsq.find_or_build()
    except (sessions.Unavailable, realnsq.Unavailable) as error:
        missing(error)


@pytest.fixture
def pyspark() -> ModuleType:
    """For tests that import pyspark or pyarrow and need no session."""
    return importlib.import_module("pyspark")


# Not longer than this folder: tests elsewhere fork, and should not have Spark's threads then.
@pytest.fixture(scope="package")
def whole_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session itself; tests ask for ``spark``."""
    spark = sessions.start(tmp_path_factory.mktemp("spark"))
    belongings = sessions.Belongings()
    leftovers.keepers.append(belongings)
    yield spark
    leftovers.keepers.remove(belongings)
    sessions.stop(spark)


@pytest.fixture
def spark(whole_spark: SparkSession) -> Iterator[SparkSession]:
    """SparkSession ``local[2,3]`` of all tests here; queries and caches end with the test."""
    conf = whole_spark.conf
    settings = dict(conf.getAll)
    yield whole_spark
    for query in whole_spark.streams.active:
        query.stop()
    whole_spark.catalog.clearCache()
    for key, value in dict(conf.getAll).items():
        if conf.isModifiable(key) and settings.get(key) != value:
            if key in settings:
                conf.set(key, settings[key])
            else:
                conf.unset(key)


class Ran(NamedTuple):
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Runs a command of ``gnsqsync`` in this process and on the session of all tests.

    A process and a JVM of its own take half a minute of a processor. The settings of Spark that a
    command gets are those of the session.
    """
    from gnsqsync.cli.app import run_command

    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    # The rest is what the start of a job changes for its whole process.
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        monkeypatch.setattr(server, "handle_error", server.handle_error)
    log = logging.getLogger("py4j")
    monkeypatch.setattr(log, "level", log.level)
    monkeypatch.setenv("MASTER", sessions.MASTER)
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "of the session's JVM")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run_command(arguments)
        return Ran(code, *capsys.readouterr())

    return run


def _cluster(pool: Pool, kind: str) -> Cluster:
    return Cluster.start(partial(pool.get, kind))


@pytest.fixture
def real_nsqd() -> None:
    """For tests that start real nsqds by themselves."""


@pytest.fixture
def own_cluster(real_nsqd: None) -> Iterator[Cluster]:
    """As ``cluster``, for one test alone: its servers may be stopped and killed."""
    with OwnCluster("real") as cluster:
        yield cluster


@pytest.fixture
def cluster(real_nsqd: None, server_pool: Pool, topics: Topics) -> Cluster:
    """Three real nsqds and an nsqlookupd, shared by all tests."""
    cluster = _cluster(server_pool, "real")
    topics.clusters.append(cluster)
    return cluster


@pytest.fixture
def embedded_cluster(server_pool: Pool, topics: Topics) -> Cluster:
    """As ``cluster``, of the embedded servers."""
    cluster = _cluster(server_pool, "embedded")
    topics.clusters.append(cluster)
    return cluster


class Topics:
    """The topics of one test, deleted after it on the clusters that it used."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.clusters: list[Cluster] = []

    def fresh(self, prefix: str = "spark") -> str:
        self.names.append(fresh_topic(prefix))
        return self.names[-1]


@pytest.fixture
def topics() -> Iterator[Topics]:
    """Makes topic names; a test that needs one only asks for ``topic``."""
    topics = Topics()
    yield topics
    for cluster in topics.clusters:
        cluster.forget(topics.names)


@pytest.fixture
def fresh(topics: Topics) -> Callable[[], str]:
    """A function that returns a new topic name at each call."""
    return topics.fresh


@pytest.fixture
def topic(topics: Topics) -> str:
    """A topic of this test alone."""
    return topics.fresh()


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A walPath."""
    return str(tmp_path / "wal")
