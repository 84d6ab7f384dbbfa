"""The campaign's own tools: a family of processes is found and killed to the last member."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tests.spark.processes import Family, usage

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
    deadline = time.monotonic() + 20
    while "ready" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return family


def test_an_orphan_that_left_the_group_is_killed_too(tmp_path: Path) -> None:
    family = start(tmp_path)
    pids = family.pids()
    assert len(pids) == 2
    assert usage(pids).threads == 2
    assert family.kill(random.Random(1)) == 2
    assert family.pids() == []
    assert usage(pids).threads == 0


def test_orphans_can_be_spared(tmp_path: Path) -> None:
    family = start(tmp_path)
    assert family.kill_group() == 1
    assert len(family.pids()) == 1
    assert family.kill(random.Random(1)) == 1
