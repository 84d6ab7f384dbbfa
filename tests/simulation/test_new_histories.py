"""Histories that no run has seen: those of the seeds from the seed of the campaigns on."""

from __future__ import annotations

import pytest

from tests.simulation.test_simulation import simulate
from tests.support import seeds


# A minute of histories, and the last of them to its end.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["cluster", "race"])
def test_nothing_is_wrong_in_new_histories(kind: str) -> None:
    words = ["--world", kind, "--first", str(seeds.seed()), "--seeds", "5000", "--minutes", "1"]
    code, output = simulate(*words)
    assert code == 0, output[-8000:]
    assert " 0 failed" in output, output[-8000:]
