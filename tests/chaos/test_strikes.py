"""Exceptions from outside leave no Writer or Reader dead, and verdicts true: some seconds of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.servers import ROOT


@pytest.mark.parametrize("workers", [3, 1])
@pytest.mark.parametrize("victims", ["threads", "gevent"])
def test_exceptions_at_random_instructions(victims: str, workers: int) -> None:
    words = [sys.executable, "-m", "tests.chaos.strikes", "--world", victims, "--seconds", "5"]
    done = subprocess.run(
        [*words, "--server", "embedded", "--seed", "7", "--workers", str(workers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout
    assert " exceptions; publishes: " in done.stdout
