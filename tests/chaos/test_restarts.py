"""The short form of ``python -m tests.chaos.restarts``: each way to restart, in each world."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.restarts import HOWS, WORLDS
from tests.support import realnsq
from tests.support.needs import missing
from tests.support.servers import ROOT

# How many bring each message above max_attempts. Of a reload each takes a new interpreter.
RESTARTS = {"stop": 8, "kill": 16, "reload": 7}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("how", "under"),
    [(how, under) for how in HOWS for under in WORLDS if (how, under) != ("reload", "gevent")],
)
def test_restarts_use_up_no_message(how: str, under: str) -> None:
    """One in ten is handled before a restart, and all others are delivered once more."""
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)
    restarts = str(RESTARTS[how])
    words = ["--how", how, "--world", under, "--in-flight", "40", "--restarts", restarts]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.chaos.restarts", *words, "--messages", "40"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    print(finished.stdout)
    assert finished.returncode == 0, finished.stdout
    assert f"{restarts} restarts, 0 messages lost" in finished.stdout
