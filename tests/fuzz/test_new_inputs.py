"""Inputs that no run has seen: mutants of the corpus, from the seed of the campaigns."""

from __future__ import annotations

import pytest
from hypothesis import given, seed, settings

from tests.fuzz.targets import TARGETS
from tests.fuzz.test_inputs import FIXED, mutants, server
from tests.support import seeds

__all__ = ["server"]


# An answer that never comes takes a quarter of a second.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TARGETS)
def test_new_mutants_of_the_corpus(name: str) -> None:
    @seed(seeds.seed())
    @settings(FIXED, derandomize=False, max_examples=300)
    @given(mutants(name))
    def run(data: bytes) -> None:
        TARGETS[name].run(data)

    run()
