"""What the targets share: how an input is cut, and what each target is.

A target takes any bytes. It returns when the code under test did what it promises, an error of its
own included; whatever else is raised is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parent / "corpus"

_PIECES = (65536, 1, 2, 3, 7, 64, 1000)


class Target(NamedTuple):
    """``run`` with one input; ``about``: what is read by what; ``words``: for the mutator."""

    run: Callable[[bytes], None]
    about: str
    words: tuple[bytes, ...] = ()


class Finding(AssertionError):
    """Something that the code under test promises did not hold."""


def promise(holds: object, text: str) -> None:
    """A check that also holds under ``python -O``."""
    if not holds:
        raise Finding(text)


def pieces(data: bytes) -> Iterator[bytes]:
    """``data`` behind its first byte, in pieces of a size that the first byte chooses."""
    size = _PIECES[data[0] % len(_PIECES)] if data else 1
    for at in range(1, len(data), size):
        yield data[at : at + size]


def inputs(name: str) -> list[Path]:
    """The committed corpus of a target; files called found-* were findings once."""
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())
