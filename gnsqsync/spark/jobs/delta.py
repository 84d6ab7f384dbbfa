"""An archive as a Delta table: each batch is one MERGE, which inserts what the table does not have.

Knows Delta's SQL, and what Spark needs for it. A commit of Delta is whole and happens once, so this
keeps no records of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.batches import Counts
from gnsqsync.spark.jobs.layout import COLUMN_NAMES, COLUMNS, KEY, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a session must have been made with.
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# The newest release, and each Spark that it has a package for.
RELEASE = "4.4.0"
SPARKS = ("4.0", "4.1", "4.2")

# By day, as Delta has files of few hours found by their statistics.
_PARTITIONS = ("topic", "date")
_INSERTED = (*COLUMN_NAMES, *_PARTITIONS)
_SAME = " AND ".join(f"t.{name} = s.{name}" for name in (*_PARTITIONS, *KEY))
# In all errors of two commits that cannot both be. A MERGE can be tried again at any time.
_CONFLICT = "DELTA_CONCURRENT"
_TRIES = 10


def package(spark_version: str) -> str | None:
    """The coordinates of Delta for this Spark ("4.2.0"); None where there is no release."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_2.13:{RELEASE}" if minor in SPARKS else None


def need_delta(spark: SparkSession) -> None:
    """Raises ConfigError when the session has no Delta, or was not made for it."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.Thread.currentThread().getContextClassLoader().loadClass(
            SETTINGS["spark.sql.extensions"]
        )
    except Py4JJavaError:
        coordinates = package(spark.version)
        if coordinates is None:
            raise ConfigError(
                f"a Delta table needs Delta's package, and Delta {RELEASE} has none for Spark"
                f" {spark.version}: take PySpark {SPARKS[-1]} (pip install"
                f' "pyspark=={SPARKS[-1]}.*"), or the format parquet'
            ) from None
        raise ConfigError(
            "a Delta table needs Delta's package: add --conf"
            f" spark.jars.packages={coordinates}, or with spark-submit --packages {coordinates}"
        ) from None
    missing = [
        f"--conf {key}={value}"
        for key, value in SETTINGS.items()
        if value not in (spark.conf.get(key, None) or "").split(",")
    ]
    if missing:
        raise ConfigError(f"a Delta table needs a session that is made with {' '.join(missing)}")


class DeltaWriter:
    """The function for ``foreachBatch`` of one query that fills a Delta table.

    ``url``: the table's, as Spark's file systems call it. ``on_batch`` is called after each batch
    with ``counts``. Called by Spark's thread of the query.
    """

    def __init__(self, url: str, on_batch: Callable[[Counts], None] | None = None) -> None:
        self.counts: Counts = Counts()
        self._table = _name(url)
        self._on_batch = on_batch

    def create(self, spark: SparkSession) -> None:
        """Make the table, unless it is there."""
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._table} ({COLUMNS}, topic STRING, date DATE)"
            f" USING delta PARTITIONED BY ({', '.join(_PARTITIONS)})"
        )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Put one batch into the table; nothing happens when it is there already."""
        from pyspark.sql import functions as F

        # The day in UTC, whatever the session's time zone is.
        day = F.date_from_unix_date((F.unix_seconds("timestamp") / 86400).cast("int"))
        rows = rows.withColumn("date", day).persist()
        try:
            micros = F.unix_micros("timestamp")
            found = rows.agg(
                F.count("*").alias("rows"),
                F.min(micros).alias("low"),
                F.max(micros).alias("high"),
                F.collect_set("topic").alias("topics"),
                F.collect_set("date").alias("dates"),
            ).collect()[0]
            if found.rows:
                inserted = self._merge(rows.dropDuplicates([*_PARTITIONS, *KEY]), found)
                self.counts.rows += inserted
                self.counts.duplicates += found.rows - inserted
        finally:
            rows.unpersist()
        self.counts.batches += 1
        if self._on_batch is not None:
            self._on_batch(self.counts)

    def _merge(self, rows: DataFrame, found: Any) -> int:
        """Insert the rows that the table does not have; how many these were."""
        names = ", ".join(_INSERTED)
        values = ", ".join(f"s.{name}" for name in _INSERTED)
        # Only what the batch may be in: a MERGE conflicts with no commit elsewhere.
        topics = ", ".join(f"'{topic}'" for topic in sorted(found.topics))
        dates = ", ".join(f"DATE'{day}'" for day in sorted(found.dates))
        low, high = (f"TIMESTAMP'{moment(micros)}'" for micros in (found.low, found.high))
        done = _again_at_conflicts(
            rows.sparkSession,
            f"MERGE INTO {self._table} AS t USING {{rows}} AS s"
            f" ON t.topic IN ({topics}) AND t.date IN ({dates})"
            f" AND t.timestamp BETWEEN {low} AND {high} AND {_SAME}"
            f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})",
            rows=rows,
        )
        return int(done.num_inserted_rows)


def optimize(spark: SparkSession, url: str, *, target_size: int, compression: str) -> int:
    """Merge the table's small files into files of ``target_size`` bytes; how many are gone.

    They stay on the storage, for readers that have begun, until somebody runs Delta's VACUUM.
    """
    own = spark.newSession()
    set_compression(own, compression)
    own.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target_size))
    own.conf.set("spark.databricks.delta.optimize.minFileSize", str(target_size // 2))
    done = _again_at_conflicts(own, f"OPTIMIZE {_name(url)}")
    return int(done.metrics.numFilesRemoved)


def set_compression(spark: SparkSession, compression: str) -> None:
    spark.conf.set("spark.sql.parquet.compression.codec", compression)


def _name(url: str) -> str:
    """The table at this URL in SQL."""
    quoted = url.replace("`", "``")
    return f"delta.`{quoted}`"


def _again_at_conflicts(spark: SparkSession, sql: str, **frames: DataFrame) -> Any:
    """The one row that a command returns; tried again when another commit came between."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for left in reversed(range(_TRIES)):
        try:
            return spark.sql(sql, **frames).collect()[0]
        except (PySparkException, Py4JError) as error:
            if not left or _CONFLICT not in str(error):
                raise
    raise AssertionError
