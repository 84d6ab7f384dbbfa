"""Numbers and times as the pages write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["drain_text", "duration_text", "rate_text", "spark_points"]

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
# The size of a line, in the units of its viewBox.
_WIDTH, _HEIGHT = 100, 20


def duration_text(seconds: float) -> str:
    """The two largest units: ``1d 2h``, ``3m 4s``, ``0s``."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def drain_text(seconds: float | None) -> str:
    """Until nothing waits. Nothing for a queue that is empty, or not known yet."""
    if not seconds:
        return ""
    return "not shrinking" if math.isinf(seconds) else duration_text(max(1.0, seconds))


def rate_text(rate: float) -> str:
    """Messages a second, with a decimal where it says something."""
    return f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def spark_points(values: Sequence[int]) -> str:
    """The points of an SVG polyline from the oldest value at the left; 0 is at the bottom."""
    if len(values) < 2:
        return ""
    top = max(*values, 1)
    step = _WIDTH / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{_HEIGHT - 1 - value / top * (_HEIGHT - 2):.1f}"
        for number, value in enumerate(values)
    )
