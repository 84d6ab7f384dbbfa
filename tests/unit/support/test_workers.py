"""What a run of the tests keeps from its processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import workers


def test_processes_share_what_one_of_them_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    workers.pytest_configure()
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert not sys.dont_write_bytecode


def test_options_of_the_run_are_not_those_of_the_runs_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-n 4")
    workers.pytest_configure()
    assert "PYTEST_ADDOPTS" not in os.environ


def test_each_long_file_is_there() -> None:
    root = Path(__file__).parents[3]
    assert [file for file in workers._LONG if not (root / file).exists()] == []


def test_each_file_with_queries_shares_a_session() -> None:
    folder = Path(__file__).parents[2] / "spark"
    asks = re.compile(r"(?:^    |\()spark: SparkSession", re.MULTILINE)
    files = {
        f"tests/spark/{path.name}"
        for path in folder.glob("test_*.py")
        if asks.search(path.read_text())
    }
    assert len(files) > 10
    assert files <= workers._SESSION_OF.keys()
