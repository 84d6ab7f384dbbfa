"""A history as an SVG: each connection of a Reader with its RDY and what it has in flight, the
faults, the publishes, and what was violated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Sample", "draw_history"]

_WIDTH = 1200
_LEFT = 190
_LANE = 46
_TOP = 40


class Sample(NamedTuple):
    """What was the case from ``at`` (seconds) on, on one connection. RDY -1: it has ended."""

    at: float
    lane: str
    rdy: int
    in_flight: int


def draw_history(
    samples: Sequence[Sample], marks: Iterable[tuple[float, str, str]], title: str
) -> str:
    """``marks``: (when, kind, text), where kind is fault, publish or violation."""
    marks = list(marks)
    times = [sample.at for sample in samples] + [at for at, _, _ in marks]
    if not times:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    first, last = min(times), max(times)
    scale = (_WIDTH - _LEFT - 20) / max(last - first, 1e-9)
    lanes = list(dict.fromkeys(sample.lane for sample in samples))
    height = _TOP + _LANE * (len(lanes) + 1) + 30

    def x(at: float) -> float:
        return _LEFT + (at - first) * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, lane in enumerate(lanes):
        parts += _lane(lane, number, [s for s in samples if s.lane == lane], x)
    bottom = _TOP + _LANE * len(lanes) + 20
    parts.append(f'<text x="10" y="{bottom + 4}">publishes</text>')
    for at, kind, text in marks:
        if kind == "publish":
            colour = {"ok": "#2a7", "unknown": "#d80"}.get(text, "#c33")
            parts.append(f'<circle cx="{x(at):.1f}" cy="{bottom}" r="2" fill="{colour}"/>')
        else:
            colour = "#c00" if kind == "violation" else "#888"
            parts.append(
                f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP - 8}" y2="{bottom + 8}"'
                f' stroke="{colour}"><title>{escape(text)}</title></line>'
                f'<text x="{x(at) + 2:.1f}" y="{_TOP - 10}" fill="{colour}">'
                f"{escape(text[:28])}</text>"
            )
    parts.append(f'<text x="{_LEFT}" y="{height - 6}">{first:.3f} s</text>')
    parts.append(f'<text x="{_WIDTH - 90}" y="{height - 6}">{last:.3f} s</text></svg>')
    return "\n".join(parts)


def _lane(lane: str, number: int, samples: list[Sample], x: object) -> list[str]:
    """In flight as an area, RDY as a line, each in steps; as high as the most of both."""
    assert callable(x)
    base = _TOP + _LANE * (number + 1) - 8
    most = max([1, *(max(s.rdy, s.in_flight) for s in samples)])
    unit = (_LANE - 14) / most
    rdy, area = [], [f"{x(samples[0].at):.1f},{base}"]
    before = samples[0]
    for sample in samples:
        for at, shown in ((sample.at, before), (sample.at, sample)):
            rdy.append(f"{x(at):.1f},{base - max(0, shown.rdy) * unit:.1f}")
            area.append(f"{x(at):.1f},{base - shown.in_flight * unit:.1f}")
        before = sample
    area.append(f"{x(before.at):.1f},{base}")
    return [
        f'<text x="10" y="{base - 12}">{escape(lane)}</text>',
        f'<text x="{_LEFT - 34}" y="{base - _LANE + 22}" fill="#666">{most}</text>',
        f'<polygon points="{" ".join(area)}" fill="#9cd" stroke="none"/>',
        f'<polyline points="{" ".join(rdy)}" fill="none" stroke="#036"/>',
        f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{base}" y2="{base}" stroke="#ccc"/>',
    ]
