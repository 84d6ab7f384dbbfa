"""Each command that consumes as process 1 of a namespace, as in a container without an init."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.integration.test_output_of_commands import MANAGE, NSQ, Commands
from tests.support.servers import Pool

ALONE = ("unshare", "--fork", "--pid", "--mount-proc")
# The handler's own child has its exit code; the command ends by a signal to process 1.
JOBS = """
import os, signal, subprocess

def work(message):
    code = subprocess.run(["sh", "-c", "exit 3"]).returncode
    with open("seen", "w") as seen:
        seen.write(f"{os.getpid() != 1} {code}")
    os.kill(1, signal.SIGTERM)
"""


@cache
def can_be_alone() -> bool:
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "gnsqsync", "consume", "TOPIC", "c", "jobs:work", "-t", "NSQD"),
        ("-m", "gnsqsync", "consume", "TOPIC", "c", "jobs:work", "-t", "NSQD", "--processes=2"),
        (*MANAGE, "nsq_consume"),
        (*NSQ, "consume"),
    ],
    ids=["cli", "cli-2", "django", "flask"],
)
def test_a_command_as_process_1(tmp_path: Path, server_pool: Pool, words: tuple[str, ...]) -> None:
    if not can_be_alone():
        pytest.skip("needs the right to make a namespace of processes")
    commands = Commands(tmp_path, server_pool.get("embedded", "nsqd", (), ""))
    (tmp_path / "jobs.py").write_text(JOBS)
    with NsqdHTTP(url(commands.nsqd)) as http:
        http.pub(commands.topic, b"one")
    places = {"TOPIC": commands.topic, "NSQD": address(commands.nsqd)}
    code, said = commands(
        *(places.get(word, word) for word in words), program=(*ALONE, sys.executable)
    )
    assert code == 0, said
    assert (tmp_path / "seen").read_text() == "True 3"
    assert commands.waiting() == (0, 1)
