"""Processes that tests start: none outlives its test, or keeps it."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support.programs import Mortal

ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_block_that_fails_does_not_wait_for_the_process() -> None:
    with pytest.raises(ZeroDivisionError):
        with Mortal(ENDLESS) as process:
            1 / 0
    assert process.returncode == -signal.SIGKILL


def test_a_block_that_succeeds_waits_for_the_process() -> None:
    with Mortal([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        pass
    assert process.returncode == 3
