"""Writes the tables of the page on performance as CSV files, which the page includes."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import kernel, machine, report, rows
from tests.bench.report import short
from tests.bench.scale import kind_of

PEERS = ("gnsq", "pynsq", "nsq-py", "go-nsq", "nsq-bench")
ON_GEVENT = ("gnsq", "go-nsq")
EVERYBODY = ("ours", "ours-gevent", "floor", "floor-gevent", *PEERS)

Entries = dict[tuple[str, str, str], dict[str, Any]]
Lines = list[Sequence[str]]


def write(found: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cells = Cells(found)
    described = found["machine"]
    load = described["load_average"][0], described["load_average_after"][0]
    (folder / "machine.txt").write_text(
        f"Measured on {datetime.date.today():%d %B %Y}: {machine.title(described)}; load average"
        f" {load[0]:.1f} at the beginning, {load[1]:.1f} at the end, with what else ran there;"
        f" {found['options']['rounds']} rounds.\n"
    )
    tables = {
        "threads": cells.beside("ours", "floor", PEERS),
        "gevent": cells.beside("ours-gevent", "floor-gevent", ON_GEVENT),
        "ratios": cells.ratios(),
        "throughput": cells.throughput(),
        "latency": cells.latency(),
        "server": cells.server(),
        "memory": cells.memory(),
        "counts": _counts(found["counts"]),
        "ramp": _ramp(found["ramp"]),
        "loads": _loads(found["ramp"]),
        "more": _more(found["scale"]),
        "sizes": _sizes(found["scale"]["sizes"]),
        "handlers": _handlers(found["scale"]["handlers"]),
        "publishers": _publishers(found["publishers"]),
        "instructions": _instructions(found["instructions"]),
        "profile": _profile(found["profile"]),
        "kernel": _kernel(found["kernel"]),
        "memory-parts": _memory(found["memory"]),
    }
    for name, lines in tables.items():
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            # A hyphen alone would be shown as the point of a list.
            writer.writerows([["–" if cell == "-" else cell for cell in line] for line in lines])


class Cells:
    """The cells of the table by layout, row and client."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._entries: Entries = {(e["layout"], e["row"], e["client"]): e for e in found["summary"]}
        self._failed = {(f["layout"], f["row"], f["client"]): f["state"] for f in found["failures"]}

    def _micros(self, row: str, client: str) -> float | None:
        entry = self._entries.get(("pinned", row, client))
        return None if entry is None else float(entry["micros"]["median"])

    def _shown(self, layout: str, row: str, client: str, key: str, unit: float = 1) -> str:
        entry = self._entries.get((layout, row, client))
        if entry is None:
            return self._failed.get((layout, row, client), "-")
        return "-" if entry[key] is None else short(entry[key]["median"] / unit)

    def beside(self, ours: str, floor: str, peers: Sequence[str]) -> Lines:
        lines: Lines = [["Work", *peers, floor, ours, "x floor", "goal", "result"]]
        for row in rows.ROWS:
            micros, base = self._micros(row.name, ours), self._micros(row.name, floor)
            if micros is None or base is None or row.kind == "latency":
                continue
            goal = report.goal_of(row, ours)
            reached = ""
            if goal is not None:
                reached = "reached" if micros / base <= goal * report.NOISE else "missed"
            lines.append(
                [row.title]
                + [self._shown("pinned", row.name, peer, "micros") for peer in peers]
                + [short(base), f"**{short(micros)}**", short(micros / base)]
                + ["" if goal is None else short(goal), reached]
            )
        return lines

    def ratios(self) -> Lines:
        peers = PEERS[:4]
        lines: Lines = [["Work", *peers]]
        for row in rows.ROWS:
            micros = self._micros(row.name, "ours")
            if not micros or row.kind == "latency":
                continue
            line = [row.title]
            for peer in peers:
                other = self._micros(row.name, peer)
                line.append(
                    self._failed.get(("pinned", row.name, peer), "-")
                    if other is None
                    else short(other / micros)
                )
            lines.append(line)
        return lines

    def throughput(self) -> Lines:
        lines: Lines = [["Work", *EVERYBODY]]
        for row in rows.ROWS:
            if row.kind != "latency" and "free" in row.layouts:
                for layout, where in (("pinned", "one CPU"), ("free", "any CPU")):
                    if (layout, row.name, "ours") not in self._entries:
                        continue
                    lines.append(
                        [f"{row.title}; {where}"]
                        + [self._shown(layout, row.name, c, "rate", 1000) for c in EVERYBODY]
                    )
        return lines

    def latency(self) -> Lines:
        lines: Lines = [["Client", "p50 ms", "p99 ms", "p50 ms", "p99 ms"]]
        for client in EVERYBODY:
            line, known = [client], False
            for row in ("latency-200", "latency-2500"):
                entry = self._entries.get(("free", row, client))
                known = known or entry is not None
                for part in ("p50", "p99"):
                    line.append("-" if entry is None else short(entry["latency"][part] / 1000))
            if known:
                lines.append(line)
        return lines

    def server(self) -> Lines:
        names = ("consume-2500-workers", "consume-2500", "consume-200", "consume-1")
        lines: Lines = [["Client", *names]]
        for client in EVERYBODY:
            lines.append(
                [client] + [self._shown("pinned", name, client, "server_micros") for name in names]
            )
        return lines

    def memory(self) -> Lines:
        lines: Lines = [["Client", "MiB", "bytes a message, gc on", "bytes a message, gc off"]]
        for client in EVERYBODY:
            shown = self._shown("pinned", "consume-2500-workers", client, "memory_mib")
            if shown != "-":
                lines.append(
                    [client, shown]
                    + [
                        self._shown("pinned", name, client, "growth")
                        for name in ("consume-2500-workers", "memory-no-gc")
                    ]
                )
        return lines


def _counts(points: Sequence[Mapping[str, Any]]) -> Lines:
    return [["Row", "messages a recv", "sends a recv"]] + [
        [p["row"], short(p["received"] / p["recvs"]), f"{p['sends'] / p['recvs']:.2f}"]
        for p in points
    ]


def _loads(found: Mapping[str, Any]) -> Lines:
    lines: Lines = [["Load", "msg/s", "Who", "p50 ms", "p99 ms", "p99.9 ms"]]
    for point in found["loads"]:
        times = [short(point[name]) for name in ("p50_ms", "p99_ms", "p999_ms")]
        lines.append([f"{point['load']:.0%}", f"{point['rate']:,}", point["who"], *times])
    return lines


def _ramp(found: Mapping[str, Any]) -> Lines:
    names = ("p50_ms", "p99_ms", "micros", "server_micros")
    titles = ("p50 ms", "p99 ms", "client us", "nsqd us")
    by_rate: dict[int, dict[str, Any]] = {}
    for point in found["points"]:
        by_rate.setdefault(point["rate"], {})[point["mode"]] = point
    return [["msg/s", *titles, *titles]] + [
        [
            f"{rate:,}",
            *(
                "-" if modes[mode][name] is None else short(modes[mode][name])
                for mode in ("adaptive", "throughput")
                for name in names
            ),
        ]
        for rate, modes in by_rate.items()
    ]


def _more(found: Mapping[str, Any]) -> Lines:
    lines: Lines = [["How many", "1 000 msg/s", "client us a message"]]
    for name in ("connections", "topics", "processes"):
        for point in found[name]:
            micros = short(point["micros"]) if "micros" in point else "-"
            lines.append(
                [f"{point['count']} {name}{kind_of(point)}", short(point["rate"] / 1000), micros]
            )
    return lines


def _sizes(points: Sequence[Mapping[str, Any]]) -> Lines:
    lines: Lines = [
        ["Bytes", "consume, ours", "floor", "MB/s, ours", "publish, ours", "floor", "MB/s, ours"]
    ]
    by_size: dict[int, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for point in points:
        by_size.setdefault(point["size"], {})[point["kind"], point["client"]] = point
    for size, cells in by_size.items():
        line = [f"{size:,}"]
        for kind in ("consume", "publish"):
            ours, floor = cells[kind, "ours"], cells[kind, "floor"]
            line += [short(ours["micros"]), short(floor["micros"])]
            line.append(short(ours["rate"] * size / 1e6))
        lines.append(line)
    return lines


def _handlers(points: Sequence[Mapping[str, Any]]) -> Lines:
    workers = sorted({point["workers"] for point in points})
    lines: Lines = [["Handler", *map(str, workers)]]
    for seconds in sorted({point["seconds"] for point in points}):
        mine = [p for p in points if p["seconds"] == seconds]
        name = f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"
        lines.append([f"{name}: msg/s", *(f"{p['rate']:,.0f}" for p in mine)])
        if all("busy" in p for p in mine):
            lines.append([f"{name}: busy %", *(f"{p['busy'] * 100:.1f}" for p in mine)])
    return lines


def _publishers(points: Sequence[Mapping[str, Any]]) -> Lines:
    lines: Lines = [
        ["Callers", "Client", "CPUs", "1 000 msg/s", "CPU us", "p50 ms", "p99 ms", "unfair"]
    ]
    for point in points:
        line = [str(point["callers"]), point["client"]]
        line.append("one" if point["layout"] == "pinned" else "any")
        line += [short(point["rate"] / 1000), short(point["micros"])]
        line += [f"{point[name]:.2f}" for name in ("p50_ms", "p99_ms", "unfair")]
        lines.append(line)
    return lines


def _instructions(points: Sequence[Mapping[str, Any]]) -> Lines:
    floors = {p["row"]: p["instructions"] for p in points if p["client"] == "floor"}
    return [["Row", "Client", "Instructions", "x floor"]] + [
        [
            p["row"],
            p["client"],
            f"{p['instructions']:,.0f}",
            f"{p['instructions'] / floors[p['row']]:.2f}",
        ]
        for p in points
    ]


def _profile(points: Sequence[Mapping[str, Any]]) -> Lines:
    return [["Row", "Client", "Part of its time", "Function"]] + [
        [p["row"], p["client"], f"{p['part']:.0%}", p["function"]] for p in points
    ]


def _kernel(points: Sequence[Mapping[str, Any]]) -> Lines:
    return [["Row", "Client", *kernel.TITLES.values()]] + [
        [p["row"], p["client"], *(f"{p[name]:.3f}" for name in kernel.TITLES)] for p in points
    ]


def _memory(points: Sequence[Mapping[str, Any]]) -> Lines:
    titles = {
        "measured": "all, above the imports",
        "one arena": "all, with MALLOC_ARENA_MAX=1",
        "objects": "Python's objects while 2500 messages wait",
    }
    return [["What", "MiB"]] + [
        [titles.get(p["part"], f"made by {p['part']}"), f"{p['mib']:.2f}"] for p in points
    ]
