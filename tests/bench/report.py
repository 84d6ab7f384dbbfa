"""Figures from samples: medians, spread and ratios; as a table and as JSON. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.cells import Bench, Failed, Hung, Sample
from tests.bench.clients import Client
from tests.bench.rows import Row

Spread = dict[str, float]
Key = tuple[str, str, str]

# What a ratio may be above its goal and still count as reached.
NOISE = 1.1


def spread(values: Iterable[float]) -> Spread:
    data = sorted(values)
    return {"median": statistics.median(data), "min": data[0], "max": data[-1]}


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` of all are not above."""
    data = sorted(values)
    return data[max(0, -(-len(data) * part // 1).__int__() - 1)]


def floor_of(client: str) -> str:
    """With which floor a client is compared."""
    return "floor-gevent" if client in ("ours-gevent", "floor-gevent") else "floor"


def goal_of(row: Row, client: str) -> float | None:
    """The multiple of its floor's CPU that a client of ours is to stay under in a row."""
    return {"ours": row.goal, "ours-gevent": row.goal_gevent}.get(client)


def summary(samples: Sequence[Sample], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a layout, row and client: spreads, and ratios of medians to every other client.

    ``cpu_ratio`` is this client's CPU a message over the other's (below 1: cheaper than the
    other); ``rate_ratio`` is its messages a second over the other's (above 1: faster).
    """
    entries: list[dict[str, Any]] = []
    for layout in dict.fromkeys(sample.layout for sample in samples):
        for row in rows:
            cells: dict[str, list[Sample]] = {}
            for sample in samples:
                if (sample.layout, sample.row) == (layout, row.name):
                    cells.setdefault(sample.client, []).append(sample)
            figures = {name: _figures(data) for name, data in cells.items()}
            for name, own in figures.items():
                cpu_ratio = _ratios(own, figures, "micros")
                goal, ratio = goal_of(row, name), cpu_ratio.get(floor_of(name))
                entries.append(
                    {
                        "layout": layout,
                        "row": row.name,
                        "client": name,
                        **own,
                        "cpu_ratio": cpu_ratio,
                        "rate_ratio": _ratios(own, figures, "rate"),
                        "goal": goal,
                        "reached": None if goal is None or ratio is None else ratio <= goal * NOISE,
                    }
                )
    return entries


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    def over(name: str, divisor: Sequence[float] | None = None) -> Spread | None:
        values = [getattr(sample, name) for sample in samples]
        if any(value is None for value in values):
            return None
        return spread(v / d for v, d in zip(values, divisor or [1] * len(values), strict=True))

    messages = [sample.messages for sample in samples]
    latencies = [micros for sample in samples for micros in sample.latencies]
    return {
        "rounds": len(samples),
        "messages": messages[0],
        "micros": spread(s.micros for s in samples),
        "rate": spread(s.rate for s in samples),
        "server_micros": over("server_micros"),
        "server_reads": over("server_reads", messages),
        "server_writes": over("server_writes", messages),
        "memory_mib": over("memory_mib"),
        "growth": over("growth"),
        "latency": {
            "p50": percentile(latencies, 0.5),
            "p99": percentile(latencies, 0.99),
            "max": max(latencies),
        }
        if latencies
        else None,
    }


def _ratios(
    own: dict[str, Any], figures: dict[str, dict[str, Any]], key: str
) -> dict[str, float | None]:
    # A cell too short for the clock may have used no CPU at all; nothing can be said then.
    return {
        name: own[key]["median"] / other[key]["median"] if other[key]["median"] else None
        for name, other in figures.items()
    }


def table(bench: Bench, rows: Sequence[Row], clients: Sequence[Client]) -> str:
    """The table for people: a block a layout and row, a line a client."""
    entries = {(e["layout"], e["row"], e["client"]): e for e in summary(bench.samples, rows)}
    # What a client costs in floors, and what ours costs in parts of it.
    names = ["x floor", *(client.name for client in clients if client.is_ours)]
    width = max(len(client.name) for client in clients)
    lines = []
    for layout in bench.layouts:
        where = "any CPU" if layout.cpu is None else f"client and nsqd on CPU {layout.cpu}"
        for row in rows:
            told = [(c, (layout.name, row.name, c.name)) for c in clients]
            if not any(key in entries or key in bench.failures for _, key in told):
                continue
            lines.append(f"{row.name}: {row.title}; {where}")
            lines.append(_head(row, names, width))
            lines += [
                f"  {client.name:<{width}}" + _line(row, key, entries, bench.failures, names)
                for client, key in told
            ]
            lines.append("")
    return "\n".join(lines)


def _head(row: Row, names: Sequence[str], width: int) -> str:
    head = f"  {'client':<{width}}"
    if row.kind == "latency":
        return f"{head}  {'p50 ms':>8}  {'p99 ms':>8}  {'max ms':>8}  client us/msg  nsqd us"
    head += f"  {'client us/msg':>21}  {'k msg/s':>21}  {'nsqd us':>7}  {'MiB':>6}"
    return head + f"  {'goal':>9}" + "".join(f"  {name:>11}" for name in names)


def _line(
    row: Row,
    key: Key,
    entries: Mapping[Key, dict[str, Any]],
    failures: Mapping[Key, Failed],
    names: Sequence[str],
) -> str:
    if key not in entries:
        return f"  {state(failures.get(key))}"
    entry = entries[key]
    server = "-" if entry["server_micros"] is None else short(entry["server_micros"]["median"])
    if row.kind == "latency":
        shown = [short(entry["latency"][name] / 1000) for name in ("p50", "p99", "max")]
        micros = short(entry["micros"]["median"])
        return "".join(f"  {text:>8}" for text in shown) + f"  {micros:>13}  {server:>7}"
    memory = "-" if entry["memory_mib"] is None else short(entry["memory_mib"]["median"])
    goal = ""
    if entry["goal"] is not None:
        goal = short(entry["goal"])
        if entry["reached"] is not None:
            goal += " ok" if entry["reached"] else " MISS"
    text = f"  {_spread(entry['micros']):>21}  {_spread(entry['rate'], 1000):>21}  {server:>7}"
    text += f"  {memory:>6}  {goal:>9}"
    own = entry["micros"]["median"]
    for name in names:
        other = entries.get((*key[:2], name))
        if name == "x floor":
            other = entries.get((*key[:2], floor_of(key[2])))
        micros = other["micros"]["median"] if other is not None else 0
        told = ""
        if own and micros and name != key[2]:
            told = short(own / micros if name == "x floor" else micros / own)
        text += f"  {told:>11}"
    return text.rstrip()


def state(failure: Failed | None) -> str:
    """What stands in the place of a figure: a dash for what a client does not have."""
    if failure is None:
        return "-"
    return "hangs" if isinstance(failure, Hung) else "failed"


def _spread(value: Spread, unit: float = 1) -> str:
    low, middle, high = (short(value[key] / unit) for key in ("min", "median", "max"))
    return f"{middle} ({low}..{high})"


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def document(bench: Bench, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything, for ``--json``."""
    return {
        "layouts": [asdict(layout) for layout in bench.layouts],
        "versions": bench.versions,
        "rows": [asdict(row) | {"warmup": row.warmup} for row in rows],
        "summary": summary(bench.samples, rows),
        "failures": [
            {
                "layout": layout,
                "row": row,
                "client": client,
                "state": state(error),
                "error": str(error),
            }
            for (layout, row, client), error in bench.failures.items()
        ],
        "samples": [asdict(sample) for sample in bench.samples],
    }
