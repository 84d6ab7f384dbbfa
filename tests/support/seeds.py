"""The seed of the campaigns: new for each run of pytest, unless the environment has one."""

from __future__ import annotations

import os
import random

# Environment variable with an integer, the same in all processes of a run.
NAME = "GNSQSYNC_TEST_SEED"


def pytest_configure() -> None:
    os.environ.setdefault(NAME, str(random.SystemRandom().randrange(1, 1_000_000)))


def pytest_report_header() -> str:
    return f"seed of the campaigns: {seed()} ({NAME}={seed()} repeats them)"


def seed() -> int:
    """Return the seed of this run."""
    return int(os.environ[NAME])
