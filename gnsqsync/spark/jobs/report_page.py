"""The HTML page of a report: one file, with its pictures and its style inside.

Knows HTML. Draws nothing.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any

from gnsqsync.spark.jobs.series import Rollup, Series
from gnsqsync.spark.jobs.units import bytes_text, duration_text, number_text

_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f6f7f9; color: #202124;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 2px; }
h2 { font-size: 15px; margin: 0 0 6px; }
p { color: #5f6368; margin: 0 0 20px; }
section { background: white; border: 1px solid #e3e5e8; border-radius: 10px;
  padding: 16px 18px; margin-bottom: 16px; overflow-x: auto; }
img { width: 100%; display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-size: 12.5px; font-weight: 600; color: #5f6368; text-align: right; }
td { text-align: right; }
th, td { padding: 6px 10px; border-bottom: 1px solid #eceef0; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
footer { color: #5f6368; font-size: 13px; }
"""
_HEADINGS = (
    "topic",
    "messages",
    "per second",
    "peak",
    "bytes",
    "per message",
    "redelivered",
    "median delay",
    "95 %, worst",
    "longest",
)


def page(
    rollup: Rollup,
    title: str,
    subtitle: str,
    footnote: str,
    pictures: list[tuple[str, bytes]],
    colors: dict[str, str],
) -> str:
    """Return the whole page. ``pictures``: (heading, SVG). ``colors``: of the topics there."""
    rows = "\n".join(_row(rollup, series, colors) for series in rollup.topics)
    headings = "".join(f"<th>{text}</th>" for text in _HEADINGS)
    sections = "\n".join(
        f"<section><h2>{escape(text)}</h2>{_image(text, data)}</section>" for text, data in pictures
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p>
<section><table>
<thead><tr>{headings}</tr></thead>
<tbody>
{rows}
</tbody>
</table></section>
{sections}
<footer>{escape(footnote)}</footer>
</main>
</body>
</html>
"""


def _image(text: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode()
    return f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{data}">'


def _row(rollup: Rollup, series: Series, colors: dict[str, str]) -> str:
    import numpy as np

    messages = series.messages.sum()
    seconds = rollup.seconds * len(rollup.times)
    cells = (
        f"{int(messages):,}",
        number_text(messages / seconds),
        number_text(series.messages.max() / rollup.seconds),
        bytes_text(series.bytes.sum()),
        bytes_text(series.bytes.sum() / messages),
        f"{series.redelivered.sum() / messages:.2%}",
        duration_text(_weighted(series.delay_p50, series.messages)),
        duration_text(float(np.fmax.reduce(series.delay_p95))),
        duration_text(float(np.fmax.reduce(series.delay_max))),
    )
    color = colors.get(series.topic, "#9aa0a6")
    name = f'<td><i style="background:{color}"></i>{escape(series.topic)}</td>'
    return f"<tr>{name}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _weighted(values: Any, weights: Any) -> float:
    import numpy as np

    known = np.isfinite(values)
    if not known.any():
        return float("nan")
    return float(np.average(values[known], weights=weights[known]))
