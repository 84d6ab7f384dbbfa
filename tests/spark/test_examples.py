"""The programs of the Spark pages, run as they stand but for addresses and folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.embedded import Nsqd
from tests.spark import session
from tests.support.texts import EXAMPLES


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


def run(name: str, nsqd: Nsqd, folder: Path) -> str:
    """The output of an example."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    program = folder / name
    # The example relies on the usual ports, one after the other.
    http = f'.option("nsqdHttpAddresses", "{nsqd.http_address}")' if "readStream" in text else ""
    line = '.option("nsqdTcpAddresses", "127.0.0.1:4150")'
    assert line in text
    text = text.replace(line, line.replace("127.0.0.1:4150", nsqd.tcp_address) + http)
    program.write_text(text.replace("/tmp/orders", str(folder / "orders")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={**os.environ, **session.environment(), "SPARK_LOCAL_DIRS": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_the_sink_publishes_the_stream_reads(
    pyspark: ModuleType, nsqd: Nsqd, tmp_path: Path
) -> None:
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic("orders")
        http.create_channel("orders", "spark")
    run("spark_sink.py", nsqd, tmp_path)
    assert "| 1000|" in run("spark_stream.py", nsqd, tmp_path)
