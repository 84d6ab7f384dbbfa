"""The seed of the campaigns: a new one for each run of pytest, unless the environment names one."""

from __future__ import annotations

import os
import random

# An integer. All processes of a run have the same.
NAME = "GNSQSYNC_TEST_SEED"


def pytest_configure() -> None:
    os.environ.setdefault(NAME, str(random.SystemRandom().randrange(1, 1_000_000)))


def pytest_report_header() -> str:
    return f"seed of the campaigns: {seed()} ({NAME}={seed()} repeats them)"


def seed() -> int:
    """Return the seed of this run."""
    return int(os.environ[NAME])
