"""The commands of the README's first code block, for CI and for the tests of the docs."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[2] / "README.rst"


def commands() -> list[str]:
    """Return the lines of the first code block. ValueError if there is none."""
    lines = README.read_text(encoding="utf-8").splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if line.startswith(".. code-block::") or line.rstrip().endswith("::")
    ]
    if not starts:
        raise ValueError(f"{README} has no code block")
    block: list[str] = []
    for line in lines[starts[0] + 1 :]:
        if line.startswith(" "):
            block.append(line.strip())
        elif line.strip():
            break
    return [line for line in block if line and not line.startswith(":")]
