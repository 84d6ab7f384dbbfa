"""The programs of the Spark pages, run as they stand but for addresses and folders."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.embedded import Nsqd
from tests.spark import session
from tests.support.ports import free_ports
from tests.support.texts import EXAMPLES
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


def placed(name: str, nsqd: Nsqd, folder: Path) -> Path:
    """The example with this nsqd and folder in it."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    program = folder / name
    # The example relies on the usual ports, one after the other.
    http = f'.option("nsqdHttpAddresses", "{nsqd.http_address}")' if "spark.read" in text else ""
    line = '.option("nsqdTcpAddresses", "127.0.0.1:4150")'
    assert line in text
    text = text.replace(line, line.replace("127.0.0.1:4150", nsqd.tcp_address) + http)
    program.write_text(text.replace("/tmp/orders", str(folder / "orders")), encoding="utf-8")
    return program


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, **session.environment(), "SPARK_LOCAL_DIRS": str(folder)}


def run(name: str, nsqd: Nsqd, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of an example that runs in this process, on the session of all tests."""
    runpy.run_path(str(placed(name, nsqd, folder)))
    return capsys.readouterr().out


def test_stream_reads_the_messages_of_the_sink(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic("orders")
        http.create_channel("orders", "spark")
    run("spark_sink.py", nsqd, tmp_path, capsys)
    assert "| 1000|" in run("spark_stream.py", nsqd, tmp_path, capsys)


def test_the_metrics_of_a_query(pyspark: ModuleType, nsqd: Nsqd, tmp_path: Path) -> None:
    """The example is a process that starts its JVM by itself, as users start it."""
    with NsqdHTTP(nsqd.http_address) as http, ExitStack() as stack:
        http.create_topic("orders")
        http.create_channel("orders", "spark")
        http.mpub("orders", [b"%d" % n for n in range(30)])
        program = placed("spark_metrics.py", nsqd, tmp_path)
        (port,) = stack.enter_context(free_ports())
        text = program.read_text(encoding="utf-8")
        program.write_text(text.replace("9150)", f"{port})"), encoding="utf-8")
        with subprocess.Popen(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment(tmp_path),
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                rows = 'gnsqsync_spark_rows_total{query="orders"}'
                eventually(lambda: sample(port, rows) == 30, 240)
                place = 'channel="spark",nsqd="%s",query="orders",topic="orders"'
                depth = f"gnsqsync_spark_depth{{{place % nsqd.tcp_address}}}"
                # What waited when the batch was planned.
                assert sample(port, depth) == 30
                http.mpub("orders", [b"%d" % n for n in range(12)])
                eventually(lambda: sample(port, rows) == 42, 120)
                # Of the batches before.
                assert sample(port, 'gnsqsync_spark_received_messages_total{query="orders"}') == 30
                spent = 'gnsqsync_spark_seconds_total{part="%s",query="orders"}'
                assert 0 < sample(port, spent % "longest_task") < sample(port, spent % "batch")
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def sample(port: int, name: str) -> float:
    """A figure of the page, -1 where there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
    except OSError:
        return -1.0
    return next((float(ln.rpartition(" ")[2]) for ln in lines if ln.startswith(f"{name} ")), -1.0)
