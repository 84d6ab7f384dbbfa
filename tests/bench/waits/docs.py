"""The table and the picture of the waits for the page on performance. Measures nothing.

The picture needs matplotlib (extra ``bench``).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import machine
from tests.bench.waits.figures import Figure, Goal, Results, csv_table
from tests.support.behaviour_pictures import SCHEMES

MARKS = {"before": "s", "ours": "o", "ours-gevent": "D", "go-nsq": "^", "gnsq": "v"}
# Index of the client's colour among those of the scheme; None: the ink.
COLOURS = {"before": None, "ours": 0, "ours-gevent": 0, "go-nsq": 2, "gnsq": 1}
TEXT = """\
{measured}

.. csv-table::
   :file: waits.csv
   :header-rows: 1
   :class: wide

.. image:: performance/waits.svg
   :class: only-light
   :alt: {alt}

.. image:: performance/waits-dark.svg
   :class: only-dark
   :alt: {alt}
"""
ALT = "Seconds of each wait by client, with the goals, on a logarithmic scale"


class Bar(NamedTuple):
    """A line of the picture: a wait with its goal, and what each client had."""

    name: str
    limit: float
    figures: Mapping[str, Figure]


def bars(rows: Iterable[tuple[str, str, Sequence[Goal]]], results: Results) -> list[Bar]:
    """Return the waits that have a goal in seconds, in the order of the table."""
    found = []
    for row, title, goals in rows:
        for goal in goals:
            if goal.unit != "s" or goal.limit is None or row not in results:
                continue
            named = {p: f[goal.name] for p, f in results[row].items() if goal.name in f}
            if named:
                found.append(Bar(f"{title}: {goal.name}", goal.limit, named))
    return found


def write(
    document: Mapping[str, Any],
    rows: Iterable[tuple[str, str, Sequence[Goal]]],
    folder: Path,
) -> None:
    """Write ``waits.csv``, ``waits.svg``, ``waits-dark.svg``, and ``waits.txt`` around them."""
    folder.mkdir(parents=True, exist_ok=True)
    described = document["machine"]
    load = described["load_average"][0], described["load_average_after"][0]
    measured = (
        f"Measured on {datetime.date.today():%d %B %Y}: {machine.title(described)}; load average"
        f" {load[0]:.1f} at the beginning, {load[1]:.1f} at the end; the run took"
        f" {document['wall'] / 60:.0f} minutes."
    )
    (folder / "waits.txt").write_text(TEXT.format(measured=measured, alt=ALT))
    (folder / "waits.csv").write_text(csv_table(document["table"]))
    found = bars(rows, document["results"])
    for scheme in SCHEMES:
        draw(found, scheme, folder / f"waits{scheme}.svg")


def draw(found: Sequence[Bar], scheme: str, path: Path) -> None:
    """Draw the bars, in the colours of a scheme."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_settings(scheme, path)):
        height = 1.2 + 0.32 * len(found)
        figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
        for peer in MARKS:
            _draw_peer(axes, found, peer, scheme)
        goals = [bar.limit for bar in found]
        ink = SCHEMES[scheme][0]
        axes.plot(goals, range(len(found)), "|", color=ink, markersize=14, label="goal")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(found)), [bar.name for bar in found])
        axes.invert_yaxis()
        axes.set_xlabel("seconds; a hollow mark: at least")
        figure.legend(frameon=False, loc="outside upper right", ncols=len(MARKS) + 1)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _settings(scheme: str, path: Path) -> dict[str, Any]:
    ink, grid, _ = SCHEMES[scheme]
    return {
        "svg.fonttype": "none",
        # The same file from the same figures.
        "svg.hashsalt": path.name,
        "font.size": 9,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": grid,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def _draw_peer(axes: Any, found: Sequence[Bar], peer: str, scheme: str) -> None:
    ink, _, colours = SCHEMES[scheme]
    number = COLOURS[peer]
    colour = ink if number is None else colours[number]
    label = peer
    # Marks of equal figures lie beside each other.
    shift = 0.15 * (list(MARKS).index(peer) - len(MARKS) // 2)
    for more, face in ((False, colour), (True, "none")):
        points = [
            (bar.figures[peer].value, y + shift)
            for y, bar in enumerate(found)
            if peer in bar.figures and bar.figures[peer].more is more
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, MARKS[peer], color=colour, markerfacecolor=face, label=label)
            # The legend has each client once; matplotlib leaves out a label that begins so.
            label = f"_{peer}"
