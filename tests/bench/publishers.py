"""Many threads, or greenlets, that publish with one Writer: rate, cost, and how long each waits."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from tests.bench import clients, report
from tests.bench.cells import Bench
from tests.bench.progress import Progress
from tests.bench.rows import Row

CALLERS = (2, 4, 16, 64, 256)
CLIENTS = ("ours", "ours-gevent", "floor")
MESSAGES = 51_200


def run(
    bench: Bench, progress: Progress, callers: Sequence[int] = CALLERS, messages: int = MESSAGES
) -> list[dict[str, Any]]:
    """A point for each layout, client and number of callers.

    ``unfair``: how many times as long as the median caller the one waits that waits longest, each
    by the mean of its publishes.
    """
    chosen = clients.select(CLIENTS)
    progress.total(len(bench.layouts) * len(chosen) * len(callers))
    points = []
    for layout in bench.layouts:
        for client in chosen:
            for count in callers:
                progress.begin(f"publishers: {count} {client.name} {layout.name}")
                row = Row("publishers", "", "waits", callers=count, warm=20 * count)
                found = bench.measure(layout, row, client, messages)
                waits = sorted(1e6 * wait for each in found["waits"] for wait in each)
                each = [mean(mine) for mine in found["waits"]]
                points.append(
                    {
                        "callers": count,
                        "client": client.name,
                        "layout": layout.name,
                        "rate": found["messages"] / found["wall"],
                        "micros": (found["user"] + found["system"]) / found["messages"] * 1e6,
                        "p50_ms": report.percentile(waits, 0.5) / 1000,
                        "p99_ms": report.percentile(waits, 0.99) / 1000,
                        "unfair": max(each) / median(each),
                    }
                )
    return points


def table(points: Sequence[dict[str, Any]]) -> str:
    lines = [
        "  callers  client       layout     msg/s  us/msg    p50 ms    p99 ms"
        "  longest / median caller"
    ]
    for point in points:
        lines.append(
            f"  {point['callers']:>7}  {point['client']:<11}  {point['layout']:<6}"
            f"  {point['rate']:>8,.0f}  {point['micros']:>6.1f}  {point['p50_ms']:>8.2f}"
            f"  {point['p99_ms']:>8.2f}  {point['unfair']:>6.2f}"
        )
    return "\n".join(lines) + "\n"
