"""Texts of numbers and times for the pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["drain_text", "duration_text", "rate_text", "spark_points"]

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
# Width and height of a sparkline, in the units of its viewBox.
_WIDTH, _HEIGHT = 100, 20


def duration_text(seconds: float) -> str:
    """Return a time in its two largest units: ``1d 2h``, ``3m 4s``, ``0s``."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def drain_text(seconds: float | None) -> str:
    """Return the time until nothing waits, or "" for a queue that is empty or not known yet."""
    if not seconds:
        return ""
    return "not shrinking" if math.isinf(seconds) else duration_text(max(1.0, seconds))


def rate_text(rate: float) -> str:
    """Return messages a second, with a decimal below 10."""
    return f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def spark_points(values: Sequence[int]) -> str:
    """Return the points of an SVG polyline. The oldest value is at the left, 0 at the bottom."""
    if len(values) < 2:
        return ""
    top = max(*values, 1)
    step = _WIDTH / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{_HEIGHT - 1 - value / top * (_HEIGHT - 2):.1f}"
        for number, value in enumerate(values)
    )
