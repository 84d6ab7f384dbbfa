"""Each line of the lists of marks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import marks, workers

ROOT = Path(__file__).parents[3]
LINES = (
    *(*marks._CAMPAIGNS, marks._SAMPLE, *marks._INTEGRATIONS),
    *(*marks._QUICK, *marks._NOT_QUICK, *workers._SESSION_OF),
)


@pytest.mark.parametrize("line", LINES)
def test_it_names_something(line: str) -> None:
    path, _, name = line.partition("::")
    assert (ROOT / path).exists()
    if name:
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
