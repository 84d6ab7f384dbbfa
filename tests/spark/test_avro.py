"""Bodies in Avro. ``python -m tests.spark.maven`` runs this where Spark's package for it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gnsqsync import NsqdHTTP, envelope
from gnsqsync.embedded import Nsqd
from tests.spark import maven
from tests.spark.test_examples import run


@pytest.fixture
def nsqd(pyspark: ModuleType) -> Iterator[Nsqd]:
    if not maven.is_here():
        pytest.skip("python -m tests.spark.maven runs this")
    with Nsqd() as server:
        yield server


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 | 128]) + varint(number // 128)


def order(customer: bytes, amount: int) -> bytes:
    """In Avro: a string with its length and a number, both numbers doubled for their sign."""
    return varint(2 * len(customer)) + customer + varint(2 * amount)


def test_columns_of_avro(nsqd: Nsqd, tmp_path: Path) -> None:
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic("orders")
        http.create_channel("orders", "spark")
        http.mpub("orders", [order(b"ada", 300), envelope.encode({"key": "1"}, order(b"bob", 7))])
    shown = run("spark_avro.py", nsqd, tmp_path)
    lines = [line.replace(" ", "") for line in shown.splitlines() if line.startswith("|")]
    assert lines == ["|customer|amount|", "|bob|7|", "|ada|300|"]
