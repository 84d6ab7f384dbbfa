"""Sharing out whole numbers evenly between floors and caps.

Knows arithmetic only.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fill"]


def fill(levels: Sequence[int], caps: Sequence[int], budget: int) -> list[int]:
    """Raise levels by ``budget`` in all, the lowest first, none above its cap.

    As if water were poured into vessels with these floors and rims. What does not divide evenly
    goes to the first ones of those at the surface.
    """
    before = sum(levels)
    if budget >= sum(caps) - before:
        return list(caps)
    pairs = list(zip(levels, caps, strict=True))
    surface, too_high = 0, max(caps, default=0)
    while too_high - surface > 1:
        middle = (surface + too_high) // 2
        if sum(max(level, min(cap, middle)) for level, cap in pairs) - before <= budget:
            surface = middle
        else:
            too_high = middle
    filled = [max(level, min(cap, surface)) for level, cap in pairs]
    left = budget - (sum(filled) - before)
    for i, (_, cap) in enumerate(pairs):
        if left and filled[i] == surface < cap:
            filled[i] += 1
            left -= 1
    return filled
