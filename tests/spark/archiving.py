"""The job of a campaign as a program of its own: what is published goes to Parquet until SIGTERM.

``python -m tests.spark.archiving FOLDER LOOKUPD TOPIC CHANNEL [KEY=VALUE...]``: the archive is
FOLDER/archive, checkpoint and log are beside it. KEY=VALUE are options of the source.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tests.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plain(folder: Path, lookupd: str, topic: str, channel: str, options: dict[str, str]) -> None:
    """Source and foreachBatch, each batch a folder that a replay of the batch replaces."""
    spark = session.start(folder)

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / "archive" / f"batch={number}"))

    query = (
        spark.readStream.format("nsq")
        .options(lookupdHttpAddresses=lookupd, subscribe=topic, channel=channel)
        .options(walPath=str(folder / "checkpoint" / "nsq-wal"), **options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )

    def stop(number: int, frame: FrameType | None) -> None:
        # The call through py4j may be under way in this thread; raising leaves it.
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        query.awaitTermination()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        query.stop()
        session.stop(spark)


def main() -> None:
    folder, lookupd, topic, channel, *options = sys.argv[1:]
    plain(Path(folder), lookupd, topic, channel, dict(o.split("=", 1) for o in options))


if __name__ == "__main__":
    main()
