"""A change of the public API is seen in review: it is a change of public_api.txt, too."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.support.api import COMMAND, PUBLIC, SNAPSHOT, Api
from tests.support.texts import ROOT


def test_the_public_api_is_what_the_snapshot_says() -> None:
    kept = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    change = list(
        difflib.unified_diff(kept, Api(ROOT).text.splitlines(), "kept", "now", lineterm="")
    )
    assert change == [], f"if that is meant, run: {COMMAND}"


def checkout(folder: Path, source: str) -> Path:
    """One whose first public module has that source, and nothing in the others."""
    for module, names in PUBLIC.items():
        path = folder.joinpath(*module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        made = "".join(f"{name} = 1\n" for name in names or ())
        (path / "__init__.py").write_text(f"__all__ = []\n{made}")
    (folder / "gnsqsync" / "__init__.py").write_text(source)
    return folder


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f(a: int, *, b: str = 'x') -> None: ...", ["f(a: int, *, b: str='x') -> None"]),
        ("f: Final = 3", ["f: Final = 3"]),
        ("f = int | str", ["f = int | str"]),
        ("if TYPE_CHECKING:\n    from gnsqsync.stats import f", ["f = 1"]),
        ("from requests import f", ["f"]),
        (
            "class Base:\n    def one(self) -> int: ...\n    two = 2\n"
            "class f(Base, Generic[T]):\n    three: int = 3\n    _four = 4\n    two = 22\n"
            "    def __init__(self, five: int) -> None:\n        self.five = five\n"
            "        self.six: int = 6\n        self._seven = 7\n"
            "    @property\n    def eight(self) -> str: ...\n    def _nine(self) -> int: ...",
            [
                "f(Base, Generic[T])",
                "f.__init__(self, five: int) -> None",
                "f.eight: str",
                "f.five",
                "f.one(self) -> int",
                "f.six: int",
                "f.three: int = 3",
                "f.two = 22",
            ],
        ),
        (
            f"def f(a, /, b=1, *c, {'d' * 60}: int = 2, **e) -> {'E' * 60}: ...",
            [
                "f(",
                "    a,",
                "    /,",
                "    b=1,",
                "    *c,",
                f"    {'d' * 60}: int=2,",
                "    **e,",
                f") -> {'E' * 60}",
            ],
        ),
    ],
)
def test_names_and_signatures_are_noted(tmp_path: Path, source: str, lines: list[str]) -> None:
    folder = checkout(tmp_path, f"__all__ = ['f']\n{source}\n")
    (folder / "gnsqsync" / "stats" / "__init__.py").write_text("__all__ = []\nf = 1\n")
    noted = Api(folder).text.split("\n\n")[0].splitlines()
    assert noted[0] == "# gnsqsync"
    assert [line.removeprefix("gnsqsync.") for line in noted[1:]] == lines
