"""An archive as a Delta table: each batch is one MERGE, which inserts the rows that are missing.

Knows Delta's SQL, and the settings that Spark needs for it. A commit of Delta happens as a whole
and once, so this module keeps no records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.batches import Counts
from gnsqsync.spark.jobs.layout import COLUMN_NAMES, COLUMNS, KEY, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Settings with which a session must have been made.
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# The newest release of Delta.
RELEASE = "4.4.0"
# The versions of Spark for which that release has a package.
SPARKS = ("4.0", "4.1", "4.2")

# Partitions by day are enough, because Delta finds the files of an hour by statistics.
_PARTITIONS = ("topic", "date")
_INSERTED = (*COLUMN_NAMES, *_PARTITIONS)
_SAME = " AND ".join(f"t.{name} = s.{name}" for name in (*_PARTITIONS, *KEY))
# Text in every error of two commits that exclude each other. A MERGE may then be tried again.
_CONFLICT = "DELTA_CONCURRENT"
# Number of tries of a command in all.
_TRIES = 10


def package(spark_version: str) -> str | None:
    """Return the coordinates of Delta for this Spark ("4.2.0"), or None if it has no package."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_2.13:{RELEASE}" if minor in SPARKS else None


def need_delta(spark: SparkSession) -> None:
    """Raise ConfigError if the session lacks Delta's package or its settings."""
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

    ``url``: of the table, in the form of Spark's file systems. ``on_batch`` is called after each
    batch with ``counts``. Spark calls the function on the query's thread.
    """

    def __init__(self, url: str, on_batch: Callable[[Counts], None] | None = None) -> None:
        self.counts: Counts = Counts()
        self._table = _name(url)
        self._on_batch = on_batch

    def create(self, spark: SparkSession) -> None:
        """Make the table, unless it exists."""
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._table} ({COLUMNS}, topic STRING, date DATE)"
            f" USING delta PARTITIONED BY ({', '.join(_PARTITIONS)})"
        )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Put one batch into the table. A batch that the table has already changes nothing."""
        from pyspark.sql import functions as F

        # The day is in UTC in every time zone of the session.
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
        """Insert the rows that the table does not have. Return their number."""
        names = ", ".join(_INSERTED)
        values = ", ".join(f"s.{name}" for name in _INSERTED)
        # The condition names the topics, days and times of the batch, so that the MERGE does not
        # conflict with commits to other files.
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
    """Merge the table's small files into files of ``target_size`` bytes.

    Returns the number of small files that the table no longer has. They stay on the storage for
    readers that have begun, until Delta's VACUUM is run.
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
    """Return the name in SQL of the table at this URL."""
    quoted = url.replace("`", "``")
    return f"delta.`{quoted}`"


def _again_at_conflicts(spark: SparkSession, sql: str, **frames: DataFrame) -> Any:
    """Run a command and return its one row. Try again if another commit came in between."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for left in reversed(range(_TRIES)):
        try:
            return spark.sql(sql, **frames).collect()[0]
        except (PySparkException, Py4JError) as error:
            if not left or _CONFLICT not in str(error):
                raise
    raise AssertionError
