"""The harness of these tests: its session, its cluster, and what it lets a test leave behind."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark import classes, session
from tests.spark.nsqds import Cluster, number_of, numbered
from tests.support.leftovers import alive, keepers
from tests.support.programs import Mortal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_jvm_maps_the_classes_that_all_share(spark: SparkSession) -> None:
    """Java says nothing where the file does not fit, and is slow again."""
    from pyspark import SparkContext

    found = classes.find_or_make()
    if found is None or str(found) not in os.environ["SPARK_SUBMIT_OPTS"]:
        pytest.skip("there is no file, or SPARK_SUBMIT_OPTS says what Java is given")
    gateway: Any = SparkContext._gateway
    assert str(found) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_a_cluster_counts_what_was_published(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(2500), 20))
    cluster.publish(topic, numbered([7]), nsqd=2)
    depths = cluster.depths(topic)
    assert sum(depth for depth, _, _ in depths) == cluster.left(topic) == 2501
    assert all(depth > 0 for depth, _, _ in depths)


def test_an_embedded_cluster_is_used_alike(embedded_cluster: Cluster, topic: str) -> None:
    embedded_cluster.create(topic)
    embedded_cluster.publish(topic, numbered(range(10)))
    assert embedded_cluster.left(topic) == 10


def test_a_body_keeps_its_number() -> None:
    bodies = numbered([0, 1 << 40], 100)
    assert [len(body) for body in bodies] == [100, 100]
    assert [number_of(body) for body in bodies] == [0, 1 << 40]


def test_the_session_retries_a_task(spark: SparkSession) -> None:
    from pyspark import TaskContext

    def second_time_lucky(numbers: object) -> list[int]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        return [context.attemptNumber()]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(second_time_lucky).collect() == [1]


def test_sockets_of_spark_are_told_from_those_that_a_test_leaves(spark: SparkSession) -> None:
    before = alive()
    seen: list[int] = []

    def use(batch: object, number: int) -> None:
        seen.append(number)

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(use).start()
    query.processAllAvailable()
    query.stop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as mine:
            thread = threading.Thread(target=mine.recv, args=(1,), name="mine", daemon=True)
            thread.start()
            left = alive() - before
            (keep,) = (one for one in keepers if isinstance(one, session.Belongings))
            texts = (left - keep(left)).texts()
            accepted, _ = listener.accept()
            accepted.close()
            thread.join()
    assert seen
    assert len(texts) == 3, texts
    assert "thread mine" in texts


@pytest.mark.parametrize("name", ["one", "two"])
def test_each_test_has_a_topic_of_its_own(cluster: Cluster, topic: str, name: str) -> None:
    cluster.create(topic)
    cluster.publish(topic, [name.encode()])
    assert cluster.left(topic) == 1


# A package that is imported when a line comes, and a worker that asks it for its connection.
PYSPARK = {
    "pyspark/__init__.py": "import sys; sys.stdin.readline()",
    "pyspark/util.py": "def local_connect_and_auth(*_): raise AssertionError",
    "worker.py": """
import sys
from pyspark.util import local_connect_and_auth
stream, _ = local_connect_and_auth(1, "")
stream.write(f"{sys.argv[1]} {__name__}".encode())
stream.close()
""",
}


def test_a_worker_connects_before_it_imports(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    for name, text in PYSPARK.items():
        (tmp_path / name).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        jvm.settimeout(60)
        environment = {
            **os.environ,
            **session.environment(),
            "PYTHONPATH": str(tmp_path),
            "PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
        }
        with Mortal(
            [str(session.WORKER_PYTHON), "-m", "worker", "word"],
            env=environment,
            stdin=subprocess.PIPE,
            cwd=tmp_path,
        ) as worker:
            connection, _ = jvm.accept()
            with connection, connection.makefile("rwb") as stream:
                assert stream.read(10) == struct.pack(">i", 6) + b"secret"
                stream.write(struct.pack(">i", 2) + b"ok")
                stream.flush()
                worker.communicate(b"\n")
                assert stream.read() == b"word __main__"
        assert worker.returncode == 0
