"""The verdict on tests that need a database server, on a machine without one."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import mariadb, postgres

# By the module of a server: the places to look for it, and the words of the reason.
SERVERS = [
    (mariadb, ("/nowhere",), "is not installed"),
    (postgres, ("/nowhere", Path("/nowhere")), "neither on the PATH"),
]


@pytest.mark.parametrize(
    ("ci", "verdict"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
@pytest.mark.parametrize(("support", "nowhere", "reason"), SERVERS, ids=["mariadb", "postgres"])
def test_without_one_tests_fail_in_ci_and_are_skipped_elsewhere(
    support: ModuleType,
    nowhere: tuple[Any, ...],
    reason: str,
    ci: str,
    verdict: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support.find, "__defaults__", nowhere)
    monkeypatch.setenv("CI", ci)
    name = support.__name__.rpartition(".")[2]
    fixture = inspect.unwrap(getattr(support, name))
    with pytest.raises(verdict, match=reason):
        next(fixture())
