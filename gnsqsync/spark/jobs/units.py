"""Numbers, sizes and times as text for people, with three digits."""

from __future__ import annotations

import math


def number_text(value: float) -> str:
    """Return a number as text: 1234567 as "1.23 M"; no unit up to 9999."""
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g} k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bytes_text(value: float) -> str:
    """Return bytes as text: 1500000 as "1.5 MB"."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g} B"


def duration_text(seconds: float) -> str:
    """Return seconds as text: 0.0123 as "12.3 ms", 90 as "1.5 min", NaN as a dash."""
    if math.isnan(seconds):
        return "–"
    for limit, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if abs(seconds) >= limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
