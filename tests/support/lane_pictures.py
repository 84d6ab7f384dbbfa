"""Sequence diagrams of a message's way, of the outbox, and of Spark's log.

``python -m tests.support.lane_pictures FOLDER`` writes each picture twice, light and dark.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

LANE, ROW, TOP, MARGIN = 190, 38, 46, 95
# Colours of text, of the lanes' lines, and of notes.
SCHEMES = {"": ("#333333", "#BBBBBB", "#0072B2"), "-dark": ("#CCCCCC", "#555555", "#56B4E9")}


class Step(NamedTuple):
    """A text that goes from one lane to another. If both are the same, it is a note."""

    begin: int
    end: int
    text: str


class Lanes(NamedTuple):
    names: tuple[str, ...]
    steps: tuple[Step, ...]


PICTURES = {
    "message": Lanes(
        ("your code", "Writer", "nsqd", "Reader", "your handler"),
        (
            Step(0, 1, "publish()"),
            Step(1, 2, "PUB"),
            Step(2, 1, "OK"),
            Step(1, 0, "returns"),
            Step(3, 2, "RDY 1"),
            Step(2, 3, "message, attempt 1"),
            Step(3, 4, "handle(message)"),
            Step(4, 3, "raises"),
            Step(3, 2, "REQ, 90 s"),
            Step(2, 2, "waits"),
            Step(2, 3, "message, attempt 2"),
            Step(3, 4, "handle(message)"),
            Step(4, 3, "returns"),
            Step(3, 2, "FIN"),
        ),
    ),
    "outbox": Lanes(
        ("your view", "database", "relay", "nsqd"),
        (
            Step(0, 1, "BEGIN"),
            Step(0, 1, "your rows"),
            Step(0, 1, "publish(): a row"),
            Step(0, 1, "COMMIT: both or none"),
            Step(2, 1, "reads the row"),
            Step(2, 3, "PUB"),
            Step(3, 2, "OK"),
            Step(2, 1, "deletes the row"),
            Step(2, 2, "dies before that: it publishes again"),
        ),
    ),
    "spark-log": Lanes(
        ("Spark", "task", "nsqd", "log at walPath"),
        (
            Step(0, 1, "read 1,000 of orders"),
            Step(1, 2, "SUB, RDY"),
            Step(2, 1, "messages"),
            Step(1, 3, "an entry, durable"),
            Step(1, 2, "FIN"),
            Step(1, 0, "rows"),
            Step(0, 1, "the same batch again"),
            Step(3, 1, "the same rows"),
            Step(1, 0, "rows"),
            Step(0, 3, "commit: the entry may go"),
        ),
    ),
}


def draw(lanes: Lanes, scheme: str) -> str:
    """Return the diagram as SVG."""
    ink, line, note = SCHEMES[scheme]
    width = LANE * (len(lanes.names) - 1) + 2 * MARGIN
    height = TOP + ROW * (len(lanes.steps) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="sans-serif" font-size="13" text-anchor="middle">',
        f'<defs><marker id="head" orient="auto" markerWidth="9" markerHeight="8" refX="8" refY="4">'
        f'<path d="M0 0 L9 4 L0 8 z" fill="{ink}"/></marker></defs>',
    ]
    for number, name in enumerate(lanes.names):
        at = MARGIN + LANE * number
        parts += [
            f'<text x="{at}" y="20" font-weight="bold" fill="{ink}">{escape(name)}</text>',
            f'<line x1="{at}" y1="30" x2="{at}" y2="{height}" stroke="{line}"/>',
        ]
    for row, step in enumerate(lanes.steps):
        y = TOP + ROW * (row + 1)
        begin, end = (MARGIN + LANE * lane for lane in (step.begin, step.end))
        if begin == end:
            parts.append(f'<text x="{begin}" y="{y}" fill="{note}">{escape(step.text)}</text>')
            continue
        parts += [
            f'<text x="{(begin + end) / 2}" y="{y - 6}" fill="{ink}">{escape(step.text)}</text>',
            f'<line x1="{begin}" y1="{y}" x2="{end}" y2="{y}" stroke="{ink}"'
            ' marker-end="url(#head)"/>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, lanes in PICTURES.items():
        for scheme in SCHEMES:
            (folder / f"{name}{scheme}.svg").write_text(draw(lanes, scheme), encoding="utf-8")


if __name__ == "__main__":
    main()
