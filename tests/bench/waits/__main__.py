"""``python -m tests.bench.waits``: how long messages wait with the defaults of each client.

    python -m tests.bench.waits                              # all rows, some eight minutes
    python -m tests.bench.waits --peers ours --row three,ten # ours alone, two rows
    python -m tests.bench.waits --package ../old             # the package there as ``before``
    python -m tests.bench.waits --docs                       # and the table and picture of the docs

Real nsqds of version 1.3.0; go-nsq and gnsq as in tests/bench. Rows run at the same time, since
they mostly wait; a row that takes the whole CPU runs by itself. The exit status is 1 when a row
failed or missed a goal.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench import machine, report
from tests.bench.clients import REPOSITORY
from tests.bench.server import find, server_version
from tests.bench.waits import figures, peers, rows
from tests.bench.waits.rows import Row

# Rows start one after another, since Python's start takes CPU.
BETWEEN_STARTS = 2.0
LOOK_AT_CPU = 1.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.waits",
        description="Measure how long messages wait with the defaults of each client.",
    )
    listed = ", ".join(row.name for row in rows.ROWS)
    parser.add_argument("--row", action="append", default=[], help=f"with commas: {listed}")
    parser.add_argument(
        "--peers",
        default=",".join(peers.DEFAULT),
        help=f"with commas: {', '.join(peers.NAMES)}; the default is %(default)s",
    )
    parser.add_argument(
        "--package", type=Path, metavar="PATH", help="a checkout of an older gnsqsync: before"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=rows.STREAM,
        help="length of the rows with a steady stream, and of the idle one; default %(default)g",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--docs", action="store_true", help="write the table and the picture")
    parser.add_argument(
        "--folder",
        type=Path,
        default=REPOSITORY / "docs" / "guides" / "performance",
        help="where --docs writes; that of the docs by default",
    )
    chosen = parser.parse_args(argv)
    chosen.peers = [name for name in chosen.peers.split(",") if name]
    if chosen.package is not None:
        if not (chosen.package / "gnsqsync" / "__init__.py").is_file():
            parser.error(f"--package {chosen.package} holds no gnsqsync/__init__.py")
        chosen.package = chosen.package.resolve()
        if "before" not in chosen.peers:
            chosen.peers.insert(0, "before")
    elif "before" in chosen.peers:
        parser.error("the peer before needs --package")
    unknown = sorted(set(chosen.peers) - set(peers.NAMES))
    if unknown:
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(peers.NAMES)}")
    try:
        chosen.rows = rows.select([n for words in chosen.row for n in words.split(",") if n])
    except ValueError as error:
        parser.error(str(error))
    return chosen


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class CpuUse:
    """The busy share of all CPUs second by second, while rows run side by side.

    The share of this run is that of the processes which ended meanwhile, and of this one.
    """

    def __init__(self) -> None:
        self._began = time.monotonic(), _own_seconds()
        self._ended = threading.Event()
        self._shares: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CpuUse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def shares(self) -> dict[str, float]:
        """Return the mean and the 95 % percentile, in percent."""
        if not self._shares:
            return {}
        mean = sum(self._shares) / len(self._shares)
        took = (time.monotonic() - self._began[0]) * (os.cpu_count() or 1)
        return {
            "mean": 100 * mean,
            "95 %": 100 * report.percentile(self._shares, 0.95),
            "of this run": 100 * (_own_seconds() - self._began[1]) / took,
        }

    def _run(self) -> None:
        busy, total = _jiffies()
        while not self._ended.wait(LOOK_AT_CPU):
            now_busy, now_total = _jiffies()
            self._shares.append((now_busy - busy) / max(1, now_total - total))
            busy, total = now_busy, now_total


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def _jiffies() -> tuple[int, int]:
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    times = [int(word) for word in words]
    return sum(times) - times[3] - times[4], sum(times)


def measure(chosen: Sequence[Row], found: Sequence[peers.Peer], seconds: float) -> dict[str, Any]:
    """Run the rows; return their results, the errors of those that failed, and the CPU's use."""
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    cancelled = threading.Event()
    # Servers and consumers end with their rows.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: cancelled.set())

    def run(row: Row) -> None:
        if cancelled.is_set():
            return
        began = time.monotonic()
        try:
            results[row.name] = rows.play(row, found, cancelled, seconds)
        except Exception:  # the figures of the other rows stay
            failed[row.name] = traceback.format_exc()
            say(f"{row.name} failed:\n{failed[row.name]}")
        else:
            say(f"{row.name}: {time.monotonic() - began:.0f} s")

    for row in chosen:
        if row.alone:
            run(row)
    with CpuUse() as use:
        together = [row for row in chosen if not row.alone]
        with ThreadPoolExecutor(max(1, len(together))) as pool:
            running = []
            for row in together:
                running.append(pool.submit(run, row))
                cancelled.wait(BETWEEN_STARTS)
            for future in running:
                future.result()
    return {"results": results, "failed": failed, "cpu": use.shares()}


def main(argv: Sequence[str] | None = None) -> int:
    chosen = arguments(argv)
    try:
        program = find(None)
    except FileNotFoundError as error:
        say(str(error))
        return 2
    described = {**machine.describe(), "nsqd": server_version(program)}
    found = peers.make(chosen.peers, chosen.package, say)
    if not found:
        return 2
    began = time.monotonic()
    measured = measure(chosen.rows, found, chosen.seconds)
    wall = time.monotonic() - began
    described["load_average_after"] = list(os.getloadavg())

    shown = [(row.name, row.title, row.goals) for row in chosen.rows]
    table = figures.lines(shown, measured["results"], [peer.name for peer in found])
    print(machine.title(described))
    print(figures.text_table(table))
    use = ", ".join(f"{name} {value:.0f} %" for name, value in measured["cpu"].items())
    print(f"{wall:.0f} s; CPU in use while rows ran side by side: {use or '-'}")
    document = {"machine": described, "wall": wall, "table": table, **measured}
    if chosen.json:
        chosen.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if chosen.docs:
        from tests.bench.waits import docs

        docs.write(document, shown, chosen.folder)
    missed = any(line[-1] == figures.MISSED for line in table)
    return 1 if measured["failed"] or missed else 0


if __name__ == "__main__":
    sys.exit(main())
