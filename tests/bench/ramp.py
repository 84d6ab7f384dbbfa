"""What rates in between cost: latency and CPU of our adaptive Reader from a trickle to a stream.

The same rates are measured with latency="throughput", which is what every other client does.
A second table has the latency at parts of the highest rate, alone and beside a computing thread,
and that of the floor and of go-nsq at the same rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.bench import clients, report, rows
from tests.bench.cells import Bench
from tests.bench.progress import Progress

RATES = (10, 30, 100, 300, 500, 700, 1000, 1500, 3000, 10_000, 30_000, 100_000)
MODES = ("adaptive", "throughput")
# The highest rate is that of a publisher that never waits; these are parts of it.
LOADS = (0.1, 0.25, 0.5, 0.75, 0.9)
LOAD_MESSAGES = 200_000
# Who consumes: how it is called, the client, and the flavour of its runner.
LOADED = (
    ("ours", "ours", ""),
    ("ours beside a thread that computes", "ours", "busy"),
    ("the same, switch interval 0.5 ms", "ours", "busy-0.0005"),
    ("floor", "floor", ""),
    ("go-nsq", "go-nsq", ""),
)
# Published at one rate after another: trickle, stream, trickle.
STEPS = ((200.0, 400), (20_000.0, 30_000), (200.0, 500))
SECONDS = 1.5
# Of the stream every so many messages are kept for the picture.
THIN = 40


def run(bench: Bench, progress: Progress, rates: Sequence[int] = RATES) -> dict[str, Any]:
    """``points``: a rate and a mode each; ``change_over``: a mode each, over time; ``loads``."""
    (ours,) = clients.select(["ours"])
    (settings,) = rows.select(["latency-2500"])
    layout = bench.layouts[-1]
    progress.total((len(rates) + 1) * len(MODES) + len(LOADS) * len(_loaded(bench)) + 1)
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
                    **percentiles(found["latencies"]),
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
    loads = run_loads(bench, progress)
    return {"points": points, "steps": STEPS, "change_over": change_over, "loads": loads}


def percentiles(latencies: Sequence[int]) -> dict[str, float]:
    """In milliseconds."""
    parts = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: report.percentile(latencies, part) / 1000 for name, part in parts.items()}


def _loaded(bench: Bench) -> list[tuple[str, str, str]]:
    """Those of LOADED that are ready."""
    return [entry for entry in LOADED if entry[1] in bench.commands]


def run_loads(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    """The latency of each of LOADED at LOADS."""
    (settings,) = rows.select(["latency-2500"])
    layout = bench.layouts[-1]

    def measure(rate: float, name: str, flavour: str) -> dict[str, Any]:
        (client,) = clients.select([name])
        messages = round(min(LOAD_MESSAGES, rate * SECONDS))
        row = replace(settings, rate=rate, warm=max(3, messages // 4))
        return bench.measure(layout, row, client, messages, flavour=flavour)

    progress.begin("loads: the highest rate")
    found = measure(1e7, "ours", "")
    highest = found["messages"] / found["wall"]
    loads = []
    for part in LOADS:
        for who, name, flavour in _loaded(bench):
            progress.begin(f"loads: {part:.0%} {who}")
            latencies = measure(highest * part, name, flavour)["latencies"]
            rate = round(highest * part)
            loads.append({"load": part, "rate": rate, "who": who, **percentiles(latencies)})
    return loads


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
        f"  {'msg/s':>6}  {'latency=':<10}  {'p50 ms':>8}  {'p99 ms':>8}  {'p99.9 ms':>8}"
        "  client us/msg  nsqd us"
    ]
    for point in found["points"]:
        server = point["server_micros"]
        lines.append(
            f"  {point['rate']:>6}  {point['mode']:<10}  {point['p50_ms']:>8.2f}"
            f"  {point['p99_ms']:>8.2f}  {point['p999_ms']:>8.2f}  {point['micros']:>13.1f}"
            f"  {'-' if server is None else report.short(server):>7}"
        )
    lines += [
        "",
        f"  {'load':>4}  {'msg/s':>7}  {'p50 ms':>8}  {'p99 ms':>8}  {'p99.9 ms':>8}  who",
    ]
    for point in found["loads"]:
        lines.append(
            f"  {point['load']:>4.0%}  {point['rate']:>7}  {point['p50_ms']:>8.2f}"
            f"  {point['p99_ms']:>8.2f}  {point['p999_ms']:>8.2f}  {point['who']}"
        )
    return "\n".join(lines) + "\n"
