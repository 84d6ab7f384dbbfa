"""Archives what is published until SIGTERM. Campaigns start this program, and kill it.

``python -m tests.spark.archiving FORMAT FOLDER ARCHIVE LOOKUPD TOPIC CHANNEL [KEY=VALUE...]``:
checkpoint and log are in FOLDER, ARCHIVE is a folder or URL. KEY=VALUE are options of the source.
It compacts the archive all the time.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from tests.spark import session


def run(
    format: str,
    folder: Path,
    path: str,
    lookupd: str,
    topic: str,
    channel: str,
    options: dict[str, str],
) -> None:
    """Archive until SIGTERM, in batches as soon as there is something."""
    from gnsqsync.spark import archive, compact
    from gnsqsync.spark.jobs.delta import optimize

    spark = session.start(folder)
    query = archive(
        spark,
        topic,
        path,
        channel=channel,
        format=format,
        options={"lookupdHttpAddresses": lookupd, **options},
        checkpoint=str(folder / "checkpoint"),
        interval=0.0,
    )
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    # An exception in the middle of a call through py4j would break the gateway, so: short waits.
    while not asked.is_set() and not query.awaitTermination(1):
        if format == "delta":
            optimize(spark, f"file://{path}", target_size=128 << 20, compression="zstd")
        else:
            compact(path, may_be_empty=True)
    query.stop()
    session.stop(spark)


def main() -> None:
    format, folder, path, lookupd, topic, channel, *options = sys.argv[1:]
    run(format, Path(folder), path, lookupd, topic, channel, dict(o.split("=", 1) for o in options))


if __name__ == "__main__":
    main()
