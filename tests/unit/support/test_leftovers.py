"""The fixture that finds leftovers finds each kind of them, and nothing where nothing is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

CONFTEST = """
from tests.support import leftovers

leftovers.GRACE = 0.3
"""

TESTS = """
import os, socket, subprocess, threading, time, weakref
import gevent
import pytest

kept = []

@pytest.fixture(scope="session")
def for_all():
    with socket.socket() as sock:
        yield sock

def test_clean(for_all):
    threading.Thread(target=int).start()
    gevent.spawn(int)
    with socket.socket():
        pass
    subprocess.run(["true"])

class Garbage:
    def __init__(self):
        self.itself = self
        weakref.finalize(self, socket.socket().close)

def test_garbage():
    Garbage()

def test_ends_soon():
    threading.Thread(target=time.sleep, args=(0.05,)).start()
    gevent.spawn_later(0.05, int)

def test_thread():
    threading.Thread(target=time.sleep, args=(2,), name="left", daemon=True).start()

def test_after_the_thread():
    pass

def test_greenlet():
    kept.append(gevent.spawn(gevent.sleep, 1000))

def test_socket():
    kept.append(socket.socket())

def test_child():
    kept.append(subprocess.Popen(["sleep", "2"]))

def test_zombie():
    kept.append(subprocess.Popen(["true"]))

def test_at_last():
    for thing in kept:
        if isinstance(thing, subprocess.Popen):
            thing.wait()
        elif isinstance(thing, socket.socket):
            thing.close()
"""


def test_each_kind_of_leftover_is_found(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.support.leftovers"]
    done = subprocess.run(
        [
            *command,
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            "--rootdir",
            str(tmp_path),
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    found = dict(
        re.findall(r"^_+ ERROR at teardown of (\w+) _+\nleft behind: (.*)$", done.stdout, re.M)
    )
    assert set(found) == {
        "test_thread",
        "test_greenlet",
        "test_socket",
        "test_child",
        "test_zombie",
    }, done.stdout
    assert "thread left" in found["test_thread"]
    assert "greenlet <Greenlet" in found["test_greenlet"]
    assert "socket " in found["test_socket"]
    assert "sleep 2" in found["test_child"]
    assert "not waited for" in found["test_zombie"]


@pytest.mark.parametrize("needs", ["", "NEEDS = {'sleep'}", "NEEDS = {'sockets'}"])
def test_unit_tests_are_kept_from_sockets_and_sleep(tmp_path: Path, needs: str) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "conftest.py").write_text((Path(__file__).parents[1] / "conftest.py").read_text())
    (folder / "test_sample.py").write_text(f"""
import socket, time
{needs}
def test_sockets():
    socket.socket().close()
def test_sleep():
    time.sleep(0)
""")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            folder,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    passed = set(re.findall(r"^PASSED \S+::test_(\w+)$", done.stdout, re.M))
    assert passed == {word for word in ("sockets", "sleep") if word in needs}, done.stdout
