"""The fixtures for users' tests, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import realnsq

FIXTURES = """
import pytest


def test_nsqlookupd(nsqlookupd):
    assert nsqlookupd.is_running


@pytest.mark.nsqlookupd(tombstone_lifetime=7)
def test_flags_by_marker(nsqlookupd):
    with open(f"/proc/{nsqlookupd.pid}/cmdline") as file:
        assert "--tombstone-lifetime=7000000000ns" in file.read()
"""

CLUSTER = """
import pytest
from gnsqsync import LookupdHTTP


@pytest.mark.nsq_cluster(nsqds=3)
def test_cluster(nsq_cluster):
    assert len(nsq_cluster.nsqds) == len(set(nsq_cluster.nsqd_tcp_addresses)) == 3
    assert nsq_cluster.lookupd_http_addresses == (nsq_cluster.lookupd.http_address,)


@pytest.mark.nsq_cluster(admin=True)
def test_admin(nsq_cluster):
    import requests
    assert len(nsq_cluster.nsqds) == 2
    nodes = requests.get(nsq_cluster.admin.url + "api/nodes", timeout=10).json()["nodes"]
    assert len(nodes) == 2


def test_no_admin(nsq_cluster):
    assert nsq_cluster.admin is None


@pytest.mark.nsqd(max_rdy_count=3)
def test_nsqd(nsqd):
    assert nsqd.is_running
    with open(f"/proc/{nsqd.pid}/cmdline") as file:
        assert "--max-rdy-count=3" in file.read()
"""


MESSAGES = """
import threading
import pytest
from gnsqsync import NsqdHTTP, Reader, Writer


@pytest.mark.nsq_cluster(nsqds=2)
def test_cluster(nsq_cluster, nsq_messages):
    with Writer(nsq_cluster.nsqd_tcp_addresses) as writer:
        for number in range(10):
            writer.publish("orders", str(number))
    assert sorted(int(message.body) for message in nsq_messages("orders")) == [*range(10)]
    assert nsq_messages("orders") == []
    nsq_cluster.nsqds[0].kill()
    assert nsq_messages("refunds") == []


def test_one_nsqd(nsq_messages, nsqd):
    assert nsq_messages("orders") == []
    with Writer(nsqd.tcp_address) as writer:
        writer.publish_many("orders", ['{"number": 1}'] * 500)
        # Somebody else consumes it.
        with Reader("orders", "c", lambda message: None, nsqd_tcp_addresses=nsqd.tcp_address):
            messages = nsq_messages("orders")
        assert [message.json() for message in messages] == [{"number": 1}] * 500
        writer.publish("orders", b"much later", defer=600)
        assert nsq_messages("orders") == []
        timer = threading.Timer(0.1, writer.publish, ("orders", b"later"))
        timer.start()
        (later,) = nsq_messages("orders", 1)
        assert later.body == b"later"
        timer.join()
        writer.publish("orders", b"x")
    with pytest.raises(AssertionError, match=r"1 messages of orders came in 2 s: \\[b'x'\\]"):
        nsq_messages("orders", 2, timeout=2)
    stats = NsqdHTTP(nsqd.http_address).stats("orders").topics[0]
    assert stats.depth == 0 and "nsq_messages" in [c.channel_name for c in stats.channels]
"""


def run(folder: Path, source: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of pytest on one test file."""
    (folder / "test_it.py").write_text(source)
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"),
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def test_fixtures(tmp_path: Path) -> None:
    status, output = run(tmp_path, FIXTURES)
    assert status == 0, output
    assert "2 passed" in output


def test_cluster(tmp_path: Path) -> None:
    status, output = run(tmp_path, CLUSTER)
    assert status == 0, output
    assert "4 passed" in output


@pytest.mark.parametrize("server_kind", ["embedded", "real"])
def test_messages(tmp_path: Path, server_kind: str) -> None:
    real = {"NSQ_BIN": str(realnsq.find_or_build())} if server_kind == "real" else {}
    status, output = run(tmp_path, MESSAGES, f"--nsq-server={server_kind}", **real)
    assert status == 0, output
    assert "2 passed" in output


def test_real_servers_come_from_nsq_bin(tmp_path: Path) -> None:
    status, output = run(tmp_path, FIXTURES, "--nsq-server=real", NSQ_BIN=str(tmp_path))
    assert status == 1
    assert f"--nsq-server=real: no nsqlookupd in NSQ_BIN={tmp_path}" in output
    # A program of that name that is no nsqlookupd is started, and its end reported.
    program = tmp_path / "nsqlookupd"
    program.write_text("#!/bin/sh\necho wrong program >&2; exit 5\n")
    program.chmod(0o755)
    status, output = run(tmp_path, FIXTURES, "--nsq-server=real", NSQ_BIN=str(tmp_path))
    assert "nsqlookupd ended with exit code 5" in output
    assert "wrong program" in output


def test_a_pytest_that_uses_no_fixture_loads_nothing_heavy(tmp_path: Path) -> None:
    status, output = run(
        tmp_path,
        "import sys\n"
        "def test_it():\n"
        "    heavy = ('gevent', 'requests', 'snappy', 'gnsqsync.embedded.process')\n"
        "    assert 'gnsqsync.embedded.pytest_plugin' in sys.modules\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n",
    )
    assert status == 0, output
