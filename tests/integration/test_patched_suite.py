"""The suite of Reader and Writer once more, in a process that gevent patched first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("test_reader_writer.py", "test_stopping.py", "test_faults.py", "test_secure.py")


@pytest.mark.timeout(600)
def test_reader_and_writer_in_a_patched_process(request: pytest.FixtureRequest) -> None:
    servers = request.config.getoption("--servers")
    command = [sys.executable, "-m", "tests.support.patched", "-q", f"--servers={servers}"]
    command += ["-p", "no:cacheprovider", "-m", "not campaign"]
    command += [f"tests/integration/{module}" for module in MODULES]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-20000:]
