"""Draws the figures of a run as PNG files; needs matplotlib (extra ``bench``). Measures nothing.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart;
lines differ in their marks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import rows
from tests.bench.scale import kind_of

COLOURS = {
    "ours": "#0072B2",
    "ours-gevent": "#56B4E9",
    "floor": "#999999",
    "floor-gevent": "#CCCCCC",
    "gnsq": "#D55E00",
    "pynsq": "#E69F00",
    "nsq-py": "#CC79A7",
    "go-nsq": "#009E73",
}
MODES = {"adaptive": ("#0072B2", "o"), "throughput": ("#D55E00", "s")}
LINES = (
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#56B4E9", "v"),
)
BARS = (
    ("publish-1", "publish-16", "consume-1"),
    ("publish-many", "consume-2500-workers", "consume-200"),
)
LABELS = {
    "publish-1": "publish,\n1 caller",
    "publish-16": "publish,\n16 callers",
    "publish-many": "publish_many,\n100 a call",
    "consume-2500-workers": "consume, RDY 2500,\n4 workers",
    "consume-200": "consume,\nRDY 200",
    "consume-1": "consume,\nRDY 1",
}


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """One file for each part that there is."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#E5E5E5",
            "axes.axisbelow": True,
            "legend.frameon": False,
        }
    )
    if found.get("summary"):
        _bars(found["summary"], folder / "cpu.png")
    if any(sample["latencies"] for sample in found.get("samples", ())):
        _latency(found["samples"], folder / "latency.png")
    if "ramp" in found:
        _ramp(found["ramp"]["points"], folder / "ramp.png")
        _change_over(found["ramp"], folder / "change-over.png")
    if "publishers" in found:
        _publishers(found["publishers"], folder / "publishers.png")
    if "scale" in found:
        _scale(found["scale"], folder / "scale.png")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot, ticker
    from PIL import Image  # which matplotlib needs itself

    for axis in figure.axes:
        for line, scale in ((axis.xaxis, axis.get_xscale()), (axis.yaxis, axis.get_yscale())):
            # Numbers, not powers; where the ticks have names they stay.
            if scale == "log" and isinstance(line.get_major_locator(), ticker.LogLocator):
                line.set_major_formatter("{x:,g}")
                line.set_minor_formatter(ticker.NullFormatter())
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    # A palette is a third of the size.
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def _bars(summary: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib import pyplot

    layout = summary[0]["layout"]
    micros = {
        (e["row"], e["client"]): e["micros"]["median"] for e in summary if e["layout"] == layout
    }
    figure, axes = pyplot.subplots(2, 1, figsize=(8, 6.4), layout="constrained")
    for axis, wanted in zip(axes, BARS, strict=True):
        names = [name for name in wanted if any((name, client) in micros for client in COLOURS)]
        if not names:
            axis.set_visible(False)
            continue
        width = 0.9 / len(COLOURS)
        for place, (client, colour) in enumerate(COLOURS.items()):
            at = [n + (place - (len(COLOURS) - 1) / 2) * width for n in range(len(names))]
            heights = [micros.get((name, client), 0) for name in names]
            bars = axis.bar(at, heights, width * 0.95, color=colour, label=client)
            axis.bar_label(
                bars,
                [f"{height:.2g}" if 0 < height < 1 else f"{height:.3g}" if height else "-"
                 for height in heights],
                fontsize=6.5,
                padding=1,
            )  # fmt: skip
        axis.set_xticks(range(len(names)), [LABELS[name] for name in names])
        axis.set_ylabel("client CPU, us a message")
        axis.grid(axis="x", visible=False)
        axis.margins(x=0.01, y=0.12)
        axis.set_yscale("log")
    axes[0].legend(ncols=4, loc="upper left", bbox_to_anchor=(0, 1.26), fontsize=8)
    _save(figure, path)


def _latency(samples: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.4), layout="constrained")
    edges = [10 ** (step / 8) for step in range(-12, 22)]  # 0.03 to 420 ms
    for client in ("ours", "ours-gevent", "floor", "gnsq", "go-nsq"):
        values = [
            micros / 1000
            for sample in samples
            if sample["row"] == "latency-200" and sample["client"] == client
            for micros in sample["latencies"]
        ]
        if values:
            axis.hist(
                values,
                edges,
                weights=[100 / len(values)] * len(values),
                histtype="step",
                linewidth=1.8,
                linestyle="--" if client == "floor" else "-",
                color=COLOURS[client],
                label=client,
            )
    axis.set_xscale("log")
    axis.set_xlabel("publish to handler, ms (200 msg/s, max_in_flight 200)")
    axis.set_ylabel("% of the messages")
    axis.legend()
    _save(figure, path)


def _ramp(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 5.6), sharex=True, layout="constrained"
    )
    for mode, (colour, mark) in MODES.items():
        mine = [point for point in points if point["mode"] == mode]
        rates = [point["rate"] for point in mine]
        for name, style in (("p50", "-"), ("p99", ":")):
            above.plot(
                rates,
                [point[f"{name}_ms"] for point in mine],
                style,
                color=colour,
                marker=mark,
                markersize=4,
                label=f"{mode}, {name}",
            )
        for name, style, title in (("micros", "-", "client"), ("server_micros", ":", "nsqd")):
            if all(point[name] is not None for point in mine):
                below.plot(
                    rates,
                    # Microseconds a message times messages a second: of a core.
                    [point[name] * point["rate"] / 1e4 for point in mine],
                    style,
                    color=colour,
                    marker=mark,
                    markersize=4,
                    label=f"{mode}, {title}",
                )
    for axis in (above, below):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.axvspan(500, 1000, color="#F5F0D8", zorder=0)
        axis.legend(fontsize=8, ncols=2)
    above.set_ylabel("publish to handler, ms")
    below.set_ylabel("% of one core")
    below.set_xlabel("messages a second (coloured: between the end and the begin of a stream)")
    _save(figure, path)


def _change_over(ramp: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    for found in reversed(ramp["change_over"]):
        colour, mark = MODES[found["mode"]]
        axis.scatter(
            [at / 1000 for at, _ in found["series"]],
            [latency for _, latency in found["series"]],
            s=5,
            color=colour,
            marker=mark,
            linewidths=0,
            label=f'latency="{found["mode"]}"',
        )
    at = 0.0
    for rate, messages in ramp["steps"]:
        if at:
            axis.axvline(at, color="#666666", linewidth=0.8, linestyle="--")
        axis.text(at + 0.03, 1.0, f"{rate:,.0f} msg/s", transform=axis.get_xaxis_transform())
        at += messages / rate
    axis.set_yscale("log")
    axis.set_xlabel("seconds")
    axis.set_ylabel("publish to handler, ms")
    axis.legend(markerscale=3, ncols=2, loc="lower right", bbox_to_anchor=(1, 1.05))
    _save(figure, path)


def _publishers(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for point in points:
        lines.setdefault((point["client"], point["layout"]), []).append(point)
    for (client, layout), mine in lines.items():
        look = {
            "color": COLOURS[client],
            "marker": "o",
            "linestyle": "-" if layout == "pinned" else ":",
            "label": f"{client}, {'one CPU' if layout == 'pinned' else 'any CPU'}",
        }
        callers = [p["callers"] for p in mine]
        left.plot(callers, [p["rate"] / 1000 for p in mine], **look)
        right.plot(callers, [p["p99_ms"] for p in mine], **look)
    left.set(xscale="log", xlabel="publishers", ylabel="1 000 messages a second")
    left.set_ylim(bottom=0)
    right.set(xscale="log", yscale="log", xlabel="publishers", ylabel="p99 of a publish, ms")
    for axis in (left, right):
        axis.set_xticks(callers, [str(count) for count in callers])
        axis.minorticks_off()
    left.legend()
    _save(figure, path)


def _scale(scale: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figure, ((left, right), (low_left, low_right)) = pyplot.subplots(
        2, 2, figsize=(9, 7), layout="constrained"
    )
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for name in ("connections", "topics"):
        for point in scale[name]:
            lines.setdefault(f"{name}{kind_of(point)}", []).append(point)
    for (colour, mark), (name, points) in zip(LINES, lines.items(), strict=False):
        left.plot(
            [p["count"] for p in points],
            [p["micros"] for p in points],
            color=colour,
            marker=mark,
            label=name,
        )
    left.set(xscale="log", yscale="log", xlabel="connections, topics")
    left.set_ylabel("client CPU, us a message")
    for (colour, mark), kind in zip(LINES, ("consume", "publish"), strict=False):
        for client, style in (("ours", "-"), ("floor", ":")):
            points = [p for p in scale["sizes"] if (p["kind"], p["client"]) == (kind, client)]
            right.plot(
                [p["size"] for p in points],
                [p["micros"] for p in points],
                style,
                color=colour,
                marker=mark,
                markersize=4,
                label=f"{kind}, {client}",
            )
    right.set(xscale="log", yscale="log", xlabel="bytes of a body")
    right.set_ylabel("client CPU, us a message")
    by_time: dict[float, list[Mapping[str, Any]]] = {}
    for point in scale["handlers"]:
        by_time.setdefault(point["seconds"], []).append(point)
    for (colour, mark), (seconds, points) in zip(LINES, by_time.items(), strict=False):
        workers = [p["workers"] for p in points]
        name = f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"
        low_left.plot(workers, [p["rate"] for p in points], color=colour, marker=mark, label=name)
        if all("busy" in p for p in points):
            low_left.plot(workers, [w / seconds for w in workers], ":", color=colour, linewidth=1)
            low_right.plot(
                workers,
                [p["busy"] * 100 for p in points],
                color=colour,
                marker=mark,
                label=name,
            )
    low_left.set(xscale="log", yscale="log", xlabel="concurrency")
    low_left.set_ylabel("messages a second (dotted: workers / time)")
    low_left.legend(title="handler takes", fontsize=8)
    low_right.set(xscale="log", xlabel="concurrency", ylim=(50, 101))
    low_right.axhline(95, color="#666666", linewidth=0.8, linestyle="--")
    low_right.set_ylabel("workers busy, % of the time")
    low_right.legend(title="handler takes", fontsize=8)
    for axis in (low_left, low_right):
        workers = sorted({p["workers"] for p in scale["handlers"]})
        axis.set_xticks(workers, [str(count) for count in workers])
        axis.minorticks_off()
    for axis in (left, right):
        axis.legend(fontsize=8)
    _save(figure, path)


assert {name for names in BARS for name in names} <= {row.name for row in rows.ROWS}
