"""What rates in between cost: latency and CPU of our adaptive Reader from a trickle to a stream.

Beside it the same Reader with latency="throughput", which is what every other client does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.bench import clients, report, rows
from tests.bench.cells import Bench
from tests.bench.progress import Progress

RATES = (10, 30, 100, 300, 500, 700, 1000, 1500, 3000, 10_000, 30_000)
MODES = ("adaptive", "throughput")
# Published at one rate after another: trickle, stream, trickle.
STEPS = ((200.0, 400), (20_000.0, 30_000), (200.0, 500))
SECONDS = 1.5
# Of the stream every so many messages are kept for the picture.
THIN = 40


def run(bench: Bench, progress: Progress, rates: Sequence[int] = RATES) -> dict[str, Any]:
    """``points``: a rate and a mode each; ``change_over``: a mode each, over time."""
    (ours,) = clients.select(["ours"])
    (settings,) = rows.select(["latency-2500"])
    layout = bench.layouts[-1]
    progress.total((len(rates) + 1) * len(MODES))
    points, change_over = [], []
    for rate in rates:
        for mode in MODES:
            progress.begin(f"ramp: {rate} msg/s {mode}")
            messages = min(20_000, max(20, round(rate * SECONDS)))
            row = replace(settings, rate=rate, latency=mode, warm=max(3, messages // 4))
            found = bench.measure(layout, row, ours, messages)
            points.append(
                {
                    "rate": rate,
                    "mode": mode,
                    "p50_ms": report.percentile(found["latencies"], 0.5) / 1000,
                    "p99_ms": report.percentile(found["latencies"], 0.99) / 1000,
                    "micros": (found["user"] + found["system"]) / messages * 1e6,
                    "server_micros": None
                    if found["server"] is None
                    else found["server"] / messages * 1e6,
                }
            )
    for mode in MODES:
        progress.begin(f"ramp: change-over {mode}")
        row = replace(settings, latency=mode, warm=0)
        messages = sum(count for _, count in STEPS)
        found = bench.measure(layout, row, ours, messages, steps=STEPS)
        change_over.append({"mode": mode, "series": thinned(found["sent"], found["latencies"])})
    return {"points": points, "steps": STEPS, "change_over": change_over}


def thinned(sent: Sequence[float], latencies: Sequence[int]) -> list[tuple[float, float]]:
    """Milliseconds of publish and of latency; all of the trickle, and some of the stream."""
    slow, stream = STEPS[0][1], STEPS[1][1]
    return [
        (round(at, 1), latency / 1000)
        for number, (at, latency) in enumerate(zip(sent, latencies, strict=True))
        if number < slow or number >= slow + stream or number % THIN == 0
    ]


def table(found: dict[str, Any]) -> str:
    lines = [
        f"  {'msg/s':>6}  {'latency=':<10}  {'p50 ms':>8}  {'p99 ms':>8}  client us/msg  nsqd us"
    ]
    for point in found["points"]:
        server = point["server_micros"]
        lines.append(
            f"  {point['rate']:>6}  {point['mode']:<10}  {point['p50_ms']:>8.2f}"
            f"  {point['p99_ms']:>8.2f}  {point['micros']:>13.1f}"
            f"  {'-' if server is None else report.short(server):>7}"
        )
    return "\n".join(lines) + "\n"
