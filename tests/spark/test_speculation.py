"""``python -m tests.spark.speculation`` as a test: second attempts on another host."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

from tests.support.servers import ROOT


def test_copies_of_slow_tasks_on_another_host(pyspark: ModuleType, real_nsqd: None) -> None:
    command = [sys.executable, "-m", "tests.spark.speculation", "--messages", "5000"]
    # A process of its own: this one has a session already.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["rows"] == outcome["distinct"] == 5000
    assert outcome["copies"] > 0
    assert outcome["replays_differ"] == 0
