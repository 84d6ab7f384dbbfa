"""Figures from samples: medians, spread and ratios; as a table and as JSON. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.cells import Bench, Sample
from tests.bench.clients import Client
from tests.bench.rows import Row

Spread = dict[str, float]


def spread(values: Iterable[float]) -> Spread:
    data = sorted(values)
    return {"median": statistics.median(data), "min": data[0], "max": data[-1]}


def summary(samples: Sequence[Sample], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a row and client: spreads, and the ratios of medians to every other client.

    ``cpu_ratio`` is this client's CPU a message over the other's (below 1: cheaper than the
    other); ``rate_ratio`` is its messages a second over the other's (above 1: faster).
    """
    entries: list[dict[str, Any]] = []
    for row in rows:
        cells: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.row == row.name:
                cells.setdefault(sample.client, []).append(sample)
        figures = {name: _figures(data) for name, data in cells.items()}
        for name, own in figures.items():
            entries.append(
                {
                    "row": row.name,
                    "client": name,
                    **own,
                    "cpu_ratio": _ratios(own, figures, "micros"),
                    "rate_ratio": _ratios(own, figures, "rate"),
                }
            )
    return entries


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    server = [s.server_micros for s in samples if s.server_micros is not None]
    return {
        "rounds": len(samples),
        "messages": samples[0].messages,
        "micros": spread(s.micros for s in samples),
        "rate": spread(s.rate for s in samples),
        "server_micros": spread(server) if server else None,
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
    """The table for people: a block a row, a line a client."""
    entries = {(e["row"], e["client"]): e for e in summary(bench.samples, rows)}
    names = [client.name for client in clients]
    width = max(map(len, ["client", *names]))
    head = f"  {'client':<{width}}  {'client us/msg':>21}  {'k msg/s':>23}  {'nsqd us':>7}"
    head += "".join(f"  {'x ' + name:>7}" for name in names)
    lines = []
    for row in rows:
        lines += [f"{row.name}: {row.title}", head]
        for client in clients:
            entry = entries.get((row.name, client.name))
            if entry is not None:
                lines.append(f"  {client.name:<{width}}" + _line(entry, names))
            elif (row.name, client.name) in bench.failures:
                lines.append(f"  {client.name:<{width}}  failed")
            else:
                lines.append(f"  {client.name:<{width}}  -")
        lines.append("")
    return "\n".join(lines)


def _line(entry: dict[str, Any], names: Sequence[str]) -> str:
    server = entry["server_micros"]
    shown = "-" if server is None else _short(server["median"])
    text = f"  {_spread(entry['micros']):>21}  {_spread(entry['rate'], 1000):>23}  {shown:>7}"
    for name in names:
        ratio = entry["cpu_ratio"].get(name)
        told = "" if name == entry["client"] or ratio is None else _short(ratio)
        text += f"  {told:>{max(7, len('x ' + name))}}"
    return text.rstrip()


def _spread(value: Spread, unit: float = 1) -> str:
    low, middle, high = (_short(value[key] / unit) for key in ("min", "median", "max"))
    return f"{middle} ({low}..{high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def document(
    bench: Bench, rows: Sequence[Row], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Everything, for ``--json``."""
    return {
        "format": 1,
        "machine": machine,
        "options": options,
        "versions": bench.versions,
        "rows": [asdict(row) | {"warmup": row.warmup} for row in rows],
        "summary": summary(bench.samples, rows),
        "failures": [
            {"row": row, "client": client, "error": error}
            for (row, client), error in bench.failures.items()
        ],
        "samples": [asdict(sample) for sample in bench.samples],
    }
