"""The lists of marks: each line names tests that exist, and ``extras`` leaves none out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support import marks, workers

ROOT = Path(__file__).parents[3]
LINES = (
    *(*marks._CAMPAIGNS, marks._SAMPLE, *marks._INTEGRATIONS),
    *(*marks._QUICK, *marks._NOT_QUICK, *marks._EXTRAS, *workers._SESSION_OF),
)


@pytest.mark.parametrize("line", LINES)
def test_it_names_something(line: str) -> None:
    path, _, name = line.partition("::")
    assert (ROOT / path).exists()
    if name:
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)


def test_what_needs_another_extra_is_marked() -> None:
    """The README's command installs the extra ``test`` alone; .ci/run runs the rest by the mark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    brought = {
        re.split(r"[^\w-]", line)[0].replace("-", "_")
        for line in project["optional-dependencies"]["test"]
    }
    pattern = re.compile(r"""importorskip\("(\w+)|missing\(NoExtra\(""")
    unmarked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for found in pattern.finditer(path.read_text("utf-8")):
            if found[1] not in brought and not any(
                name.startswith(line.partition("::")[0]) for line in marks._EXTRAS
            ):
                unmarked.append((name, found[0]))
    assert unmarked == []
