"""``python -m tests.spark.compactions``: compact under kill -9, while others write and read.

A process compacts an archive again and again and gets SIGKILL at random moments. Meanwhile a
writer adds numbered rows, a file for a few of them, and a reader takes one snapshot after the
other. Each snapshot must have every row that was there before it exactly once, and so must the
archive in the end, for everybody who reads Parquet. Without Spark. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnsqsync.spark.jobs import compact
from gnsqsync.spark.jobs.layout import Place, changed_name
from gnsqsync.spark.jobs.snapshot import folders, opened, snapshot
from gnsqsync.spark.stores import Store
from tests.support import s3
from tests.support.servers import ROOT

FOLDERS = [f"topic=orders/date=2026-11-20/hour={hour:02}" for hour in (10, 11)]
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROWS = 5

# What is killed.
_LIFE = """
import json, sys
from gnsqsync.spark.jobs import compact

path, options, target = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
while True:
    done = compact(path, may_be_empty=True, storage_options=options, target_size=target)
    print(done.merged, flush=True)
"""


def add(store: Store, folder: str, numbers: Sequence[int], name: str) -> None:
    """A file with these numbers, as a batch of the archive adds it."""
    import pyarrow as pa

    from gnsqsync.spark.jobs import parquet

    rows = [
        {
            "value": b"%d" % number,
            "id": f"{number:016x}",
            "timestamp": NOON,
            "attempts": 1,
            "nsqd": "n:4150",
            "received_at": NOON,
        }
        for number in numbers
    ]
    staged = f"_gnsqsync/test/staging/{name}"
    with parquet.writing(store, staged, "none") as writing:
        for batch in pa.Table.from_pylist(rows, parquet.schema()).to_batches():
            writing.add(batch)
    store.copy([(staged, f"{folder}/{name}.parquet")])
    store.put(changed_name(folder), name.encode())
    store.delete([staged])


def read(store: Store) -> Counter[int]:
    """How often each number is in a snapshot, read as the jobs read it."""
    names = snapshot(store, folders(store))
    return values(store, names)


def values(store: Store, names: Any) -> Counter[int]:
    from gnsqsync.spark.jobs import parquet

    found: Counter[int] = Counter()
    for name in names:
        with opened(store, name) as file:
            for batch in parquet.read(file, ["value"]):
                found.update(int(value) for value in batch.column(0).to_pylist())
    return found


@dataclass
class Report:
    kills: int = 0
    merges: int = 0
    snapshots: int = 0
    rows: int = 0
    files: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{self.kills} kills; {self.rows:,} rows in {self.files} files;"
            f" {self.snapshots} snapshots meanwhile; compactions that ended merged"
            f" {self.merges:,} files"
        )
        return "\n".join([text, *self.wrong, "WRONG" if self.wrong else "each row once"])


def run(place: Place, kills: int, seed: int, pause: float = 0.02) -> Report:
    """One campaign in an empty folder; ``pause``: seconds between two files."""
    chance = random.Random(seed)
    report = Report()
    added = [0]
    ended = threading.Event()

    def write() -> None:
        store = place.open()
        while not ended.is_set():
            numbers = range(added[0], added[0] + ROWS)
            add(store, FOLDERS[added[0] // ROWS % 2], numbers, f"part-{added[0]:06}")
            added[0] += ROWS
            ended.wait(pause)

    def look() -> None:
        store = place.open()
        while not ended.is_set():
            before = added[0]
            if before:
                found = read(store)
                report.snapshots += 1
                check(report, found, before, f"snapshot {report.snapshots}")

    threads = [threading.Thread(target=each) for each in (write, look)]
    for thread in threads:
        thread.start()
    try:
        while report.kills < kills and not report.wrong:
            merged = life(place, chance)
            report.merges += merged
            report.kills += 1
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    compact(place.path, storage_options=place.options)
    store = place.open()
    found = values(store, [name for folder in FOLDERS for name in store.list(folder)])
    check(report, found, added[0], "the archive in the end")
    report.rows = sum(found.values())
    report.files = sum(len(store.list(folder)) for folder in FOLDERS)
    return report


def check(report: Report, found: Counter[int], least: int, what: str) -> None:
    twice = [number for number, times in found.items() if times > 1]
    missing = [number for number in range(least) if number not in found]
    if twice or missing:
        report.wrong.append(f"{what}: twice {twice[:10]}, missing {missing[:10]} of {least}")


def life(place: Place, chance: random.Random) -> int:
    """One process until its kill, at most a second after its first compaction; files merged."""
    words = [sys.executable, "-c", _LIFE, place.path, json.dumps(dict(place.options))]
    # Merged files become large enough to be left alone, so that there is always work.
    words.append(str(chance.choice([20_000, 200_000])))
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        merged = int(process.stdout.readline() or 0)
        time.sleep(chance.random())
    finally:
        process.kill()
        rest = process.stdout.read()
        process.stdout.close()
        process.wait()
    return merged + sum(int(line) for line in rest.split("\n")[:-1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.compactions")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--s3", action="store_true", help="on moto's S3 and not on a disk")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen = parser.parse_args(argv)
    print(f"seed {chosen.seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = Place(str(folder / "archive"))
        if chosen.s3:
            server = stack.enter_context(s3.running(folder))
            place = Place(f"s3://{s3.BUCKET}/archive", server.options)
        began = time.monotonic()
        report = run(place, chosen.kills, chosen.seed, 0.5 if chosen.s3 else 0.02)
    print(f"{report}\n{time.monotonic() - began:.0f} s")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
