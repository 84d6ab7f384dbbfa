"""The archive job: the messages of topics as Parquet files or as a Delta table.

Knows how to start the query. ``batches`` and ``delta`` know how to store a batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.batches import ArchiveWriter, Counts, Settings
from gnsqsync.spark.jobs.common import join, spark_path, storage_path
from gnsqsync.spark.jobs.compaction import check_compression
from gnsqsync.spark.jobs.delta import DeltaWriter, need_delta, set_compression
from gnsqsync.spark.jobs.layout import FORMATS, HIDDEN, Place, refuse_delta
from gnsqsync.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming import StreamingQuery

# Columns that the archive asks of the source: all that it keeps.
_SOURCE_COLUMNS = (
    "value binary, topic string, id string, timestamp timestamp, attempts int, nsqd string,"
    " received_at timestamp"
)
_STREAM = "gnsqsync-archive.json"


def archive(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str,
    *,
    channel: str,
    options: Mapping[str, str],
    format: str = "parquet",
    checkpoint: str | None = None,
    interval: float = 60.0,
    available_now: bool = False,
    max_messages: int | None = None,
    compression: str = "zstd",
    look_up_all: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_batch: Callable[[Counts], None] | None = None,
) -> StreamingQuery:
    """Start a query that copies the messages of ``topics`` to files at ``path``.

    Files lie in ``<path>/topic=.../date=.../hour=.../`` by publish time (UTC).
    ``spark.read.parquet(path)`` reads each published message exactly once. Each batch adds files:
    call `compact` now and then.

    With ``format="delta"`` the archive is a Delta table with the partitions topic and date, and
    each batch is one MERGE. The session must be made with Delta's package, extension and catalog.
    Delta's OPTIMIZE merges the files.

    Args:
        spark: The session of Spark that runs the job.
        topics: One topic or several.
        path: A folder that driver and executors share, or a URL: s3://, gs://, abfs://.
        channel: The channel to consume.
        options: Options of ``format("nsq")``: addresses, ``nsq.*`` and the like.
        format: "parquet" or "delta". Default: "parquet".
        checkpoint: The folder or URL of Spark's checkpoint and of the source's log; shared as
            ``path``. Default: hidden inside ``path``.
        interval: Seconds between two batches. Default: 60.
        available_now: True to take the messages that wait now, and then end. Default: False.
        max_messages: Upper bound of messages in a batch. Default: no limit.
        compression: The codec of Parquet. Default: "zstd".
        look_up_all: True to look up every message in the archive, and not only messages with
            attempts above 1: a killed nsqd may deliver again with attempts 1. A Delta table always
            looks up every message. Default: False.
        storage_options: Options of fsspec's file system of a URL. Spark's own file system writes a
            Delta table. Default: none.
        on_batch: Called after each batch with the counts so far (rows, duplicates, batches).
            Default: none.

    Returns:
        The running query. With ``available_now`` the query fails if it reaches none of the nsqds
        with messages, and names them all. It also fails if it takes nothing although messages wait.

    Raises:
        ConfigError: A value is not allowed, or the session has no Delta.

    Threads:
        ``on_batch`` is called on the query's thread.
    """
    if interval < 0:
        raise ConfigError(f"interval is {interval}; allowed is 0 or more")
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; allowed are {', '.join(FORMATS)}")
    check_compression(compression)
    path, checkpoint, source = check(
        topics,
        path,
        channel=channel,
        options=options,
        checkpoint=checkpoint,
        max_messages=max_messages,
        storage_options=storage_options,
    )
    from gnsqsync.spark.source import NsqDataSource

    writer: ArchiveWriter | DeltaWriter
    checkpoint_url = spark_path(checkpoint)
    check_file_system(spark, checkpoint_url, "the checkpoint's path")
    # A new session keeps the settings below from the caller's session.
    own = spark.newSession()
    # PySpark before 4.2 tells no source of availableNow, and without this ends after one batch.
    source["availableNow"] = str(available_now).lower()
    own.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    _register(own, NsqDataSource)
    if format == "delta":
        writer = _delta_writer(own, path, compression, on_batch)
    else:
        place = Place.of(path, storage_options)
        stream = Place.of(checkpoint, storage_options, "the checkpoint's path")
        writer = _parquet_writer(place, stream, Settings(compression, look_up_all), on_batch)
    messages = own.readStream.format("nsq").schema(_SOURCE_COLUMNS).options(**source).load()
    writing = (
        messages.writeStream.foreachBatch(writer)
        .option("checkpointLocation", checkpoint_url)
        .queryName(f"archive of {source['subscribe']}")
    )
    if available_now:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(interval * 1000)} milliseconds").start()


def check(
    topics: str | Sequence[str],
    path: str,
    *,
    channel: str,
    options: Mapping[str, str],
    checkpoint: str | None,
    max_messages: int | None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[str, str, dict[str, str]]:
    """Return the paths of archive and checkpoint, and all options of the source.

    Raises ConfigError as ``archive``. Needs no Spark, which starts slowly.
    """
    path = storage_path(path, "the archive's path")
    checkpoint = storage_path(
        checkpoint or join(path, HIDDEN, "checkpoint"), "the checkpoint's path"
    )
    source = {"walPath": join(checkpoint, "nsq-wal")}
    if "://" in checkpoint and storage_options:
        source["walOptions"] = json.dumps(storage_options)
    source |= options
    source["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    source["channel"] = channel
    if max_messages is not None:
        source["maxMessagesPerTrigger"] = str(max_messages)
    SourceOptions.parse(source, streaming=True)
    return path, checkpoint, source


def _parquet_writer(
    place: Place,
    checkpoint: Place,
    settings: Settings,
    on_batch: Callable[[Counts], None] | None,
) -> ArchiveWriter:
    store = place.open()
    store.probe()
    refuse_delta(store, store.folders(), 'say --format delta (in Python format="delta")')
    writer = ArchiveWriter(place, _stream(checkpoint), settings, on_batch)
    writer.heal()
    return writer


def _delta_writer(
    spark: SparkSession,
    path: str,
    compression: str,
    on_batch: Callable[[Counts], None] | None,
) -> DeltaWriter:
    need_delta(spark)
    url = spark_path(path)
    check_file_system(spark, url, "the archive's path")
    set_compression(spark, compression)
    writer = DeltaWriter(url, on_batch)
    writer.create(spark)
    return writer


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register ``source`` with the session, unless Spark has found it by itself."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # PySpark 4.0 refuses a name that it has found. Newer versions replace the source.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def check_file_system(spark: SparkSession, url: str, what: str) -> None:
    """Raise ConfigError if Spark has no file system for this URL."""
    from py4j.protocol import Py4JJavaError

    scheme = url.partition(":")[0]
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    hadoop = jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(
            scheme, spark.sparkContext._jsc.sc().hadoopConfiguration()
        )
    except Py4JJavaError:
        package = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}.get(scheme)
        if package is None:
            needed = "the connector of this store"
        else:
            version = hadoop.util.VersionInfo.getVersion()
            needed = f"--packages org.apache.hadoop:{package}:{version}"
        raise ConfigError(
            f"{what} {url!r} needs Spark's own file system for {scheme}://: add {needed}, or set it"
            " to a folder on a disk (an archive of Parquet files needs no such package)"
        ) from None


def _stream(checkpoint: Place) -> str:
    """Return the id of a checkpoint, which makes its batch numbers unique.

    The id is a file in the checkpoint, so it is deleted with the checkpoint.
    """
    store = checkpoint.open()
    store.create(_STREAM, json.dumps({"stream": uuid.uuid4().hex}).encode())
    kept = store.read(_STREAM)
    assert kept is not None
    return str(json.loads(kept)["stream"])
