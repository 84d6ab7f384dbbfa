"""The report job: a rollup drawn as a PNG, or as one HTML page that needs no other file.

Knows matplotlib. Reads no messages and needs no Spark.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsqsync import durable
from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.common import storage_path
from gnsqsync.spark.jobs.report_page import page
from gnsqsync.spark.jobs.series import Rollup, Series, load
from gnsqsync.spark.jobs.units import bytes_text, duration_text, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of topics that people with a red-green weakness can tell apart.
COLORS = ("#2f6fde", "#e8710a", "#12967f", "#a142c4", "#d6336c", "#7a8c00", "#8a5a2b")
# Colour of the sum of all other topics.
_REST = "#9aa0a6"
# Seconds: shorter delays are drawn with this length.
_SHORTEST = 0.0005
_INK, _FAINT, _GRID = "#202124", "#5f6368", "#e6e8eb"
_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": "#c4c7cc",
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "gnsqsync",
}


def report(
    rollup: str,
    path: str,
    *,
    topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    title: str = "NSQ topics",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Draw the rollup in the folder ``rollup`` to the file ``path`` (.png or .html).

    The report shows messages and bytes per second, redeliveries and delays over time by topic. The
    topics with most messages have colours of their own. An HTML page has its pictures inside, and a
    table.

    Args:
        rollup: The path or URL of a rollup.
        path: The file to write.
        topics: Topics to show. Default: all.
        start: Begin of the time shown. Default: begin of the rollup.
        end: End of the time shown. Default: end of the rollup.
        title: The heading. Default: "NSQ topics".
        storage_options: Options of fsspec's file system of a URL. Default: none.

    Returns:
        The path.

    Raises:
        ConfigError: A value is not allowed.
        ImportError: matplotlib or PyArrow is missing.
    """
    rollup = storage_path(rollup, "the rollup's path")
    kind = os.path.splitext(path)[1].lower()
    if kind not in (".png", ".html"):
        raise ConfigError(f"{path!r} is neither a .png nor a .html file")
    try:
        import matplotlib
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"a report needs {error.name}, which is not installed here: pip install"
            ' "gnsqsync[report]"'
        ) from error
    found = load(rollup, topics=topics, start=start, end=end, storage_options=storage_options)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        data = _html(found, title) if kind == ".html" else _png(found, title)
    # On a full disk the earlier picture stays, and no half-written one appears.
    durable.write(path, data)
    return path


def _png(rollup: Rollup, title: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 11.6))
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    shown = prominent(rollup)
    for place, (text, draw) in zip(axes, PANELS, strict=True):
        _panel(place, rollup, shown, text, draw)
    columns = len(shown) if sum(len(name) + 5 for name, _, _ in shown) < 120 else 4
    rows = -(-len(shown) // columns)
    top = 0.905 - 0.02 * rows
    figure.subplots_adjust(left=0.075, right=0.975, top=top, bottom=0.065, hspace=0.3)
    figure.text(0.03, 0.972, title, fontsize=16, fontweight="bold", va="center")
    figure.text(0.03, 0.949, subtitle(rollup), fontsize=9.5, color=_FAINT, va="center")
    _legend(figure, shown, columns)
    figure.text(0.03, 0.018, footnote(rollup), fontsize=8, color=_FAINT, va="center")
    return _saved(figure, "png")


def _html(rollup: Rollup, title: str) -> bytes:
    shown = prominent(rollup)
    pictures = [(text, _saved(panel_figure(rollup, shown, draw), "svg")) for text, draw in PANELS]
    colors = {name: color for name, color, _ in shown}
    return page(rollup, title, subtitle(rollup), footnote(rollup), pictures, colors).encode()


def panel_figure(rollup: Rollup, shown: Shown, draw: Callable[..., None]) -> Figure:
    """Return one panel as a separate picture, for the HTML page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.0))
    place = figure.subplots()
    _panel(place, rollup, shown, "", draw)
    # A legend stands above the axes.
    top = 0.965 if place.get_legend() is None else 0.9
    figure.subplots_adjust(left=0.07, right=0.985, top=top, bottom=0.12)
    return figure


def _saved(figure: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, dpi=130, facecolor="white", metadata=metadata)
    return out.getvalue()


Shown = list[tuple[str, str, Series]]


def prominent(rollup: Rollup) -> Shown:
    """Return (name, colour, series) of each line: the first topics, and the sum of the others."""
    first = rollup.topics[: len(COLORS)]
    found = [(series.topic, color, series) for series, color in zip(first, COLORS, strict=False)]
    if rest := rollup.topics[len(COLORS) :]:
        found.append((f"{len(rest)} more", _REST, _sum(rest)))
    return found


def _sum(topics: list[Series]) -> Series:
    """Return the sum of several topics. It has no delays, because percentiles do not add up."""
    import numpy as np

    nothing = np.full(len(topics[0].messages), np.nan)
    return Series(
        "",
        sum(series.messages for series in topics),
        sum(series.bytes for series in topics),
        sum(series.redelivered for series in topics),
        nothing,
        nothing,
        nothing,
    )


def subtitle(rollup: Rollup) -> str:
    """Return one line with the time and the totals."""
    import numpy as np

    first = rollup.times[0].item()
    last = (rollup.times[-1] + np.timedelta64(rollup.seconds, "s")).item()
    clock = "%H:%M:%S" if rollup.seconds < 60 else "%H:%M"
    until = clock if first.date() == last.date() else f"%Y-%m-%d {clock}"
    messages = sum(int(series.messages.sum()) for series in rollup.topics)
    size = sum(int(series.bytes.sum()) for series in rollup.topics)
    count = len(rollup.topics)
    return (
        f"{first:%Y-%m-%d} {first:{clock}} to {last:{until}} UTC"
        f"  ·  {messages:,} messages, {bytes_text(size)}"
        f"  ·  {count} {'topic' if count == 1 else 'topics'}"
    )


def footnote(rollup: Rollup) -> str:
    """Return one line that explains a point and the delay."""
    joined = (
        f" ({rollup.joined} of the rollup's put together: percentiles are averages)"
        if rollup.joined > 1
        else ""
    )
    return (
        f"Each point is a window of {duration_text(rollup.seconds)} of publish time{joined}."
        " Delay: from nsqd's timestamp until the archive had read the message."
    )


# Panels


def _panel(
    place: Axes, rollup: Rollup, shown: Shown, title: str, draw: Callable[..., None]
) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    place.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=8)
    draw(place, rollup, shown)
    place.set_xlim(*_span(rollup))
    place.tick_params(which="both", length=0)
    locator = AutoDateLocator(minticks=5, maxticks=12)
    place.xaxis.set_major_locator(locator)
    place.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _span(rollup: Rollup) -> tuple[Any, Any]:
    """Return the ends of the axis of time: all windows, and a little room on both sides.

    The room beside a single window is as wide as the window. Matplotlib's own choice for one point
    in time is years.
    """
    import numpy as np

    count = len(rollup.times)
    width = rollup.seconds * (count * 0.01 if count > 1 else 1.0)
    room = np.timedelta64(max(1, round(width)), "s")
    end = rollup.times[-1] + np.timedelta64(rollup.seconds, "s")
    return rollup.times[0] - room, end + room


def _middle(rollup: Rollup) -> Any:
    """Return the times of the points: the middle of each window."""
    import numpy as np

    return rollup.times + np.timedelta64(rollup.seconds // 2, "s")


def _points(rollup: Rollup) -> dict[str, Any]:
    """Return a style with markers if a line has few points: a single point has no line."""
    return {"marker": "o", "markersize": 3.5} if len(rollup.times) <= 40 else {}


def _rates(place: Axes, rollup: Rollup, shown: Shown, attribute: str) -> None:
    for _, color, series in shown:
        rate = getattr(series, attribute) / rollup.seconds
        place.plot(_middle(rollup), rate, color=color, **_points(rollup))
        if len(shown) == 1:
            place.fill_between(_middle(rollup), rate, color=color, alpha=0.08, linewidth=0)
    place.set_ylim(bottom=0)


def _messages(place: Axes, rollup: Rollup, shown: Shown) -> None:
    _rates(place, rollup, shown, "messages")
    place.yaxis.set_major_formatter(lambda value, _: number_text(value))


def _bytes(place: Axes, rollup: Rollup, shown: Shown) -> None:
    _rates(place, rollup, shown, "bytes")
    place.yaxis.set_major_formatter(lambda value, _: bytes_text(value))


def _redelivered(place: Axes, rollup: Rollup, shown: Shown) -> None:
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    bottom = np.zeros(len(rollup.times))
    for _, color, series in shown:
        place.bar(
            rollup.times,
            series.redelivered,
            np.timedelta64(rollup.seconds, "s"),
            bottom,
            align="edge",
            color=color,
            linewidth=0,
            antialiased=False,  # no seams between neighbours
        )
        bottom = bottom + series.redelivered
    place.set_ylim(0, max(1.0, bottom.max() * 1.08))
    place.yaxis.set_major_locator(MaxNLocator(integer=True))
    place.yaxis.set_major_formatter(lambda value, _: number_text(value))
    if not bottom.any():
        place.text(0.5, 0.5, "none", transform=place.transAxes, ha="center", color=_FAINT)


def _delays(place: Axes, rollup: Rollup, shown: Shown) -> None:
    import numpy as np
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    at = _middle(rollup)
    drawn = [each for each in shown if np.isfinite(each[2].delay_p50).any()]
    for _, color, series in drawn:
        # Clocks differ, so a delay may be 0 or less, which a logarithmic axis cannot show.
        p50, p95, longest = (
            np.maximum(values, _SHORTEST)
            for values in (series.delay_p50, series.delay_p95, series.delay_max)
        )
        place.plot(at, p50, color=color, **_points(rollup))
        place.plot(at, p95, color=color, linewidth=1.1, linestyle=(0, (4, 2)), **_points(rollup))
        size = 5 if _points(rollup) else 2.5
        place.plot(at, longest, color=color, linewidth=0, marker=".", markersize=size, alpha=0.5)
        if len(drawn) == 1:
            place.fill_between(at, p50, p95, color=color, alpha=0.08, linewidth=0)
    place.set_yscale("log")
    drawn_values = [
        value
        for _, _, series in drawn
        for values in (series.delay_p50, series.delay_max)
        for value in np.maximum(values[np.isfinite(values)], _SHORTEST)
    ]
    low, high = round_limits(min(drawn_values, default=0.1), max(drawn_values, default=1.0))
    place.set_ylim(low * 0.9, high * 1.1)
    # With labels at powers of ten alone, a narrow range would have no label.
    few = high / low < 200
    place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=12))
    place.yaxis.set_major_formatter(lambda value, _: duration_text(value))
    place.yaxis.set_minor_formatter(NullFormatter())
    kinds = [
        Line2D([], [], color=_FAINT, label="median"),
        Line2D([], [], color=_FAINT, linewidth=1.1, linestyle=(0, (4, 2)), label="95 %"),
        Line2D([], [], color=_FAINT, linewidth=0, marker=".", markersize=5, label="longest"),
    ]
    place.legend(
        handles=kinds,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.99),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        handlelength=2.2,
        borderaxespad=0.1,
    )


def round_limits(low: float, high: float) -> tuple[float, float]:
    """Return the numbers of 1, 2, 5, 10, 20 ... next below ``low`` and next above ``high``.

    A number of the series stays as it is.
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [first * 10.0**exponent for exponent in exponents for first in (1, 2, 5)]
    return max(s for s in steps if s <= low), min(s for s in steps if s >= high)


PANELS: tuple[tuple[str, Callable[[Axes, Rollup, Shown], None]], ...] = (
    ("Messages per second", _messages),
    ("Bytes per second", _bytes),
    ("Redelivered messages per window", _redelivered),
    ("Delay from publish to read", _delays),
)


def _legend(figure: Figure, shown: Shown, columns: int) -> None:
    from matplotlib.lines import Line2D

    # A topic's name has up to 64 characters.
    names = [name if len(name) <= 34 else f"{name[:33]}…" for name, _, _ in shown]
    colors = [color for _, color, _ in shown]
    figure.legend(
        handles=[
            Line2D([], [], color=color, linewidth=3, label=name)
            for name, color in zip(names, colors, strict=True)
        ],
        loc="upper left",
        bbox_to_anchor=(0.024, 0.94),
        ncols=columns,
        frameon=False,
        handlelength=1.0,
        handletextpad=0.5,
        columnspacing=1.6,
    )
