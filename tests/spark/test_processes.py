"""The campaign's own tools: a family of processes is found and killed to the last member."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tests.spark.processes import Family, Meter, children, usage
from tests.support.programs import Mortal
from tests.support.waiting import eventually

# Starts a child in a group of its own, which starts a grandchild in a session of its own and ends.
PROGRAM = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], preexec_fn=os.setpgrp).wait()
    print("ready", flush=True)
    time.sleep(600)
elif sys.argv[1] == "child":
    subprocess.Popen([sys.executable, __file__, "orphan"], start_new_session=True)
else:
    time.sleep(600)
"""


def start(tmp_path: Path) -> Family:
    script, log = tmp_path / "program.py", tmp_path / "log"
    script.write_text(PROGRAM)
    family = Family([sys.executable, str(script)], {}, log)
    eventually(lambda: "ready" in log.read_text(), 20)
    return family


def test_an_orphan_that_left_the_group_is_killed_too(tmp_path: Path) -> None:
    family = start(tmp_path)
    pids = family.pids()
    assert len(pids) == 2
    assert set(usage(pids)) == set(pids)
    assert family.kill(random.Random(1)) == 2
    assert family.pids() == []
    assert usage(pids) == {}


def test_orphans_can_be_spared(tmp_path: Path) -> None:
    family = start(tmp_path)
    assert family.kill_group() == 1
    assert len(family.pids()) == 1
    assert family.kill(random.Random(1)) == 1


def test_the_cpu_of_a_child_that_ended_counts() -> None:
    program = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]]);"
    program += "time.sleep(600)"
    work = "import time\nwhile time.process_time() < 1: pass"
    with Mortal([sys.executable, "-c", program, work]) as process:
        meter = Meter(process.pid)
        deadline = time.monotonic() + 60
        meter.watch(1.0)
        while children(process.pid) and time.monotonic() < deadline:
            meter.watch(0.5)
        own, others = meter.used()
        process.kill()
    assert 0.2 < others.cpu <= 2.0
    assert own.cpu < 0.5
    assert others.memory == others.threads == 0
