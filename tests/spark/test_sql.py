"""Topics in SQL: views, tables that are refused, and the headers of envelopes as columns."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gnsqsync import NsqdHTTP, Writer, envelope
from gnsqsync.embedded import Nsqd
from tests.support.texts import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    """With the topic orders and its channels."""
    with Nsqd() as server:
        with NsqdHTTP(server.http_address) as http:
            http.create_topic("orders")
            for channel in ("sql", "spark"):
                http.create_channel("orders", channel)
        yield server


@pytest.fixture(autouse=True)
def no_views(spark: SparkSession) -> Iterator[None]:
    """The session is that of all tests here."""
    yield
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def publish(nsqd: Nsqd, *bodies: bytes) -> None:
    with Writer(nsqd.tcp_address) as writer:
        writer.publish_many("orders", bodies)


def options(nsqd: Nsqd, wal: str, **more: str) -> str:
    """As SQL."""
    pairs = {
        "subscribe": "orders",
        "channel": "sql",
        "nsqdTcpAddresses": nsqd.tcp_address,
        "nsqdHttpAddresses": nsqd.http_address,
        "walPath": wal,
        **more,
    }
    return "OPTIONS (" + ", ".join(f"{name} '{value}'" for name, value in pairs.items()) + ")"


def bodies(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_every_query_of_a_view_gets_the_rows_of_the_first(
    spark: SparkSession, nsqd: Nsqd, wal: str
) -> None:
    make = "CREATE OR REPLACE TEMPORARY VIEW orders USING nsq "
    publish(nsqd, b"1", b"2")
    spark.sql(make + options(nsqd, wal))
    assert bodies(spark.sql("SELECT * FROM orders")) == [b"1", b"2"]
    publish(nsqd, b"3")
    assert bodies(spark.sql("SELECT * FROM orders WHERE string(value) > '1'")) == [b"2"]
    spark.sql(make + options(nsqd, wal))
    assert bodies(spark.sql("SELECT * FROM orders")) == [b"3"]
    publish(nsqd, b"4")
    for _ in range(2):
        spark.sql(make + options(nsqd, wal, drainId="monday"))
        assert bodies(spark.sql("SELECT * FROM orders")) == [b"4"]
        publish(nsqd, b"5")
    spark.sql(make + options(nsqd, wal, drainId="tuesday"))
    assert bodies(spark.sql("SELECT * FROM orders")) == [b"5", b"5"]


def test_a_table_is_refused(spark: SparkSession, nsqd: Nsqd, wal: str) -> None:
    from pyspark.errors import AnalysisException

    sentence = "write CREATE TEMPORARY VIEW name USING nsq"
    with pytest.raises(AnalysisException, match=sentence):
        spark.sql("CREATE TABLE orders USING nsq " + options(nsqd, wal))
    assert not spark.catalog.tableExists("orders")
    spark.sql("CREATE TABLE orders (value BINARY) USING nsq " + options(nsqd, wal))
    try:
        for query in ("SELECT * FROM orders", "INSERT INTO orders VALUES (X'41')"):
            with pytest.raises(AnalysisException, match=sentence):
                spark.sql(query).collect()
    finally:
        spark.sql("DROP TABLE orders")


def run_example(
    name: str, spark: SparkSession, nsqd: Nsqd, folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """What an example prints that runs in this process and session."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").replace("/tmp/orders", str(folder / "o"))
    http = nsqd.http_address
    for line, more in (
        (
            '.option("nsqdTcpAddresses", "127.0.0.1:4150")',
            f'.option("nsqdHttpAddresses", "{http}")',
        ),
        ("channel 'sql',", f" nsqdHttpAddresses '{http}',"),
    ):
        text = text.replace(line, line + more)
    program = folder / name
    program.write_text(text.replace("127.0.0.1:4150", nsqd.tcp_address), encoding="utf-8")
    runpy.run_path(str(program))
    return capsys.readouterr().out


def rows(text: str) -> list[list[str]]:
    """The cells of what DataFrame.show() printed, without the heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_example_in_sql(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = [("ann", 30), ("bob", 100), ("ann", 250)]
    publish(nsqd, *(json.dumps({"customer": c, "amount": a}).encode() for c, a in orders))
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic("large-orders")
        http.create_channel("large-orders", "all")
        found = run_example("spark_sql.py", spark, nsqd, tmp_path, capsys)
        assert rows(found) == [["ann", "2", "280"], ["bob", "1", "100"]]
        (topic,) = http.stats("large-orders").topics
        assert topic.channels[0].depth == 2


def test_the_example_with_headers(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Writer(nsqd.tcp_address, headers=True) as writer:
        body = b'{"customer": "ann", "amount": 30}'
        writer.publish("orders", body, headers={"key": "invoice-17", "source": "shop"})
    publish(nsqd, b'{"customer": "bob", "amount": 100}')
    found = run_example("spark_headers.py", spark, nsqd, tmp_path, capsys)
    assert rows(found) == [["invoice-17", "shop", "ann", "30"], ["NULL", "NULL", "bob", "100"]]


def envelopes(chance: random.Random) -> Iterator[bytes]:
    """Good ones, broken ones, and bodies in none."""

    def raw(block: bytes, body: bytes = b"B") -> bytes:
        return envelope.MAGIC + len(block).to_bytes(2) + block + body

    whole = [
        envelope.encode({}, b"b"),
        envelope.encode({"a": "1", "key": "k"}, b"body"),
        envelope.encode({"ä": "", "€": "\n"}, b"\0b"),
        envelope.encode({f"{n}": "v" for n in range(64)}, b"b"),
        envelope.encode({"long": "x" * 65_000}, b"b"),
    ]
    yield from whole
    yield from (b"", b"x", envelope.MAGIC, raw(b"a\0b", b""), raw(b""), raw(b"\0", b""))
    yield from (raw(b"a\0b\0"), raw(b"a\0b\0c"), raw(b"a\0b\0a\0c"), raw(b"\0b"), raw(b"a\0b\0\0c"))
    # No UTF-8: a byte, a surrogate, two bytes for a zero, above the last character.
    yield from (
        raw(b"a\0" + bad) for bad in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
    )
    for count in (64, 65, 128, 129):
        yield raw(b"\0".join(b"%d" % n for n in range(2 * count)))
    alphabet = ["\0", "\0", "a", "b", "ä", "€"]
    for _ in range(500):
        yield raw("".join(chance.choices(alphabet, k=chance.randrange(9))).encode())
        broken = bytearray(chance.choice(whole[:3]))
        broken[chance.randrange(len(broken))] = chance.randrange(256)
        yield bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])


def test_headers_and_bodies_are_those_of_a_message(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from gnsqsync.spark import body, headers

    values = list(envelopes(random.Random(20)))
    frame = spark.createDataFrame(list(enumerate(values)), "n INT, value BINARY")
    found = frame.select("n", headers().alias("h"), body(F.col("value")).alias("b")).collect()
    assert len(found) == len(values)
    with_headers = 0
    for row in found:
        expected, rest = envelope.decode(values[row.n]) or ({}, values[row.n])
        assert (row.h, bytes(row.b)) == (expected, rest), values[row.n][:100]
        with_headers += bool(expected)
    assert with_headers > 50


def test_two_queries_share_a_wal_path(
    spark: SparkSession, nsqd: Nsqd, wal: str, tmp_path: Path
) -> None:
    """Each has a log of its own below it, and gets what its channel got."""

    def start(channel: str) -> Callable[[], list[bytes]]:
        frame = spark.readStream.format("nsq").options(
            subscribe="orders",
            channel=channel,
            nsqdTcpAddresses=nsqd.tcp_address,
            nsqdHttpAddresses=nsqd.http_address,
            walPath=wal,
        )
        query = (
            frame.load()
            .writeStream.format("memory")
            .queryName(channel)
            .option("checkpointLocation", str(tmp_path / channel))
            .start()
        )

        def result() -> list[bytes]:
            query.processAllAvailable()
            return bodies(spark.table(channel))

        return result

    publish(nsqd, b"1", b"2")
    first, second = start("sql"), start("spark")
    assert first() == second() == [b"1", b"2"]
    logs = [each.name for each in Path(wal).iterdir() if each.is_dir()]
    assert len(logs) == 2
    publish(nsqd, b"3")
    assert first() == second() == [b"1", b"2", b"3"]
