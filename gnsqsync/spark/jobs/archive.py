"""The archive job: the messages of topics as Parquet, by topic and hour of their publish time.

Knows how to start the query. ``batches`` knows what it does with a batch.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gnsqsync.errors import ConfigError
from gnsqsync.spark import files
from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.batches import ArchiveWriter, Counts, Settings
from gnsqsync.spark.jobs.common import local_path
from gnsqsync.spark.jobs.layout import HIDDEN
from gnsqsync.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming import StreamingQuery

# What the archive asks of the source: all columns that it keeps.
_SOURCE_COLUMNS = (
    "value binary, topic string, id string, timestamp timestamp, attempts int, nsqd string,"
    " received_at timestamp"
)
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_STREAM = "gnsqsync-archive.json"


def archive(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str,
    *,
    channel: str,
    options: Mapping[str, str],
    checkpoint: str | None = None,
    interval: float = 60.0,
    available_now: bool = False,
    max_messages: int | None = None,
    compact_every: float = 600.0,
    target_size: int = 128 << 20,
    compression: str = "zstd",
    look_up_all: bool = False,
    on_batch: Callable[[Counts], None] | None = None,
) -> StreamingQuery:
    """Start to copy what ``topics`` get to Parquet at ``path``; returns the running query.

    Files lie in ``<path>/topic=.../date=.../hour=.../`` by publish time (UTC).
    ``spark.read.parquet(path)`` reads exactly what was published, each message once.

    Args:
        spark: The session.
        topics: One topic or several.
        path: A folder or URL on a file system that driver and executors share.
        channel: The channel to consume.
        options: Those of ``format("nsq")``: addresses, ``nsq.*`` and the like.
        checkpoint: Where Spark keeps what it knows about the query, and the source its log; shared
            as ``path``. None: hidden inside ``path``.
        interval: Seconds between two batches.
        available_now: Whether to take what is there now and then end.
        max_messages: The most of a batch; None: no limit.
        compact_every: Seconds between two rounds that merge small files; 0: never.
        target_size: Bytes of a merged file.
        compression: The codec of Parquet.
        look_up_all: Whether to look up every message in the archive, and not only those with
            attempts above 1. An nsqd that was killed may deliver again without saying so.
        on_batch: Called after each batch with what was done so far (rows, duplicates, batches,
            merged).

    Returns:
        The running query. With ``available_now`` it fails if it reaches none of the nsqds with
        messages, and names them all.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        ``on_batch`` is called on the query's thread.
    """
    for name, value, low in (
        ("interval", interval, 0),
        ("compact_every", compact_every, 0),
        ("target_size", target_size, 1),
    ):
        if value < low:
            raise ConfigError(f"{name} is {value}; allowed is {low} or more")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression is {compression!r}; allowed are {', '.join(COMPRESSIONS)}")
    path, checkpoint, source = check(
        topics,
        path,
        channel=channel,
        options=options,
        checkpoint=checkpoint,
        max_messages=max_messages,
    )
    from gnsqsync.spark.source import NsqDataSource

    # A session of its own: the settings for Parquet are not the caller's.
    own = spark.newSession()
    # PySpark before 4.2 tells no source of availableNow, and ends after one batch without this.
    source["availableNow"] = str(available_now).lower()
    own.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    _register(own, NsqDataSource)
    messages = own.readStream.format("nsq").schema(_SOURCE_COLUMNS).options(**source).load()
    settings = Settings(compression, compact_every, target_size, look_up_all)
    writer = ArchiveWriter(path, _stream(checkpoint), settings, on_batch)
    writer.heal()
    writing = (
        messages.writeStream.foreachBatch(writer)
        .option("checkpointLocation", parquet.uri(checkpoint))
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
) -> tuple[str, str, dict[str, str]]:
    """Paths of archive and checkpoint, and all options of the source; ConfigError as ``archive``.

    Needs no Spark, which starts slowly.
    """
    path = local_path(path, "the archive's path")
    checkpoint = local_path(
        checkpoint or os.path.join(path, HIDDEN, "checkpoint"), "the checkpoint's path"
    )
    source = {"walPath": parquet.uri(os.path.join(checkpoint, "nsq-wal")), **options}
    source["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    source["channel"] = channel
    if max_messages is not None:
        source["maxMessagesPerTrigger"] = str(max_messages)
    SourceOptions.parse(source, streaming=True)
    return path, checkpoint, source


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    """Make ``source`` known to the session, where Spark has not found it by itself."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # 4.0 refuses a name that it has found; newer ones replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _stream(checkpoint: str) -> str:
    """The id to which the checkpoint's batch numbers belong; kept in it, and deleted with it."""
    files.make_folder(checkpoint)
    with files.locked(os.path.join(checkpoint, f"{_STREAM}.lock")):
        kept = os.path.join(checkpoint, _STREAM)
        found = files.read_json(kept)
        if found is None:
            found = {"stream": uuid.uuid4().hex}
            files.write_json(kept, found)
    return str(found["stream"])
