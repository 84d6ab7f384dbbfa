"""The job of a campaign as a program of its own: what is published goes to Parquet until SIGTERM.

``python -m tests.spark.archiving FOLDER LOOKUPD TOPIC CHANNEL [KEY=VALUE...]``: the archive is
FOLDER/archive, checkpoint and log are beside it. KEY=VALUE are options of the source.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from tests.spark import session


def run(folder: Path, lookupd: str, topic: str, channel: str, options: dict[str, str]) -> None:
    """Archive until SIGTERM, in batches as soon as there is something."""
    from gnsqsync.spark import archive

    spark = session.start(folder)
    query = archive(
        spark,
        topic,
        str(folder / "archive"),
        channel=channel,
        options={"lookupdHttpAddresses": lookupd, **options},
        checkpoint=str(folder / "checkpoint"),
        interval=0.0,
    )
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    # An exception in the middle of a call through py4j would break the gateway, so: short waits.
    while not asked.is_set() and not query.awaitTermination(1):
        pass
    query.stop()
    session.stop(spark)


def main() -> None:
    folder, lookupd, topic, channel, *options = sys.argv[1:]
    run(Path(folder), lookupd, topic, channel, dict(o.split("=", 1) for o in options))


if __name__ == "__main__":
    main()
