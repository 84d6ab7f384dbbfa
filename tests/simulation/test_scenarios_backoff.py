"""The scenarios of ``scenarios_backoff.py``, each on threads and on greenlets."""

from __future__ import annotations

import pytest

from tests.simulation.outcomes import names, outcomes

# The first test runs all of them.
pytestmark = pytest.mark.timeout(900)

NAMES = names("backoff")


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("backoff")


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""


def test_these_are_all(found: dict[str, str]) -> None:
    assert found.keys() == set(NAMES)
