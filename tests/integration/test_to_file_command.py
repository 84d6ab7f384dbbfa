"""The flags of ``gnsqsync to-file``, and what it shows: on a terminal and on its pages."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from gnsqsync.cli import main
from tests.integration.conftest import address
from tests.support.servers import ROOT, Site
from tests.support.tofile import OURS, Tool, make_channels, publish, wait_until_finished


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--topic or --topic-pattern required"),
        (["--topic-pattern=^a"], "--lookupd-http-address must be specified"),
        (["--topic-pattern=(", "-l", "127.0.0.1:1"], "is not a regular expression"),
        (["--topic=a", "--topic-pattern=^b"], "none of the topics matches"),
        (["--topic=a b"], "'a b'"),
        (["--topic=a", "--gzip", "--filename-format=x"], "missing <REV> in --filename-format"),
        (["--topic=a", "--topic=b", "--filename-format=x"], "missing <TOPIC>"),
        (["--topic=a", "--filename-format=../x"], "no file in the folder"),
        (["--topic=a", "--gzip-level=10"], "1<=x<=9"),
        (["--topic=a", "--rotate-size=-1"], "x>=0"),
        (["--topic=a", "--rotate-interval=soon"], "soon"),
        (["--topic=a", "--sync-interval=0"], "--sync-interval"),
        (["--topic=a", "--max-in-flight=0"], "x>=1"),
        (["--topic=a", "--consumer-opt=nonsense,1"], "nonsense"),
        (["--topic=a", "--channel="], "channel"),
        (["--topic=a", "extra"], "extra"),
    ],
)
def test_wrong_usage(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written."""
    assert main(["to-file", f"--output-dir={tmp_path / 'out'}", *flags]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert said in text and "Traceback" not in text
    assert not (tmp_path / "out").exists()


def test_pages(site: Site, topic: str, tmp_path: Path) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, OURS)
    publish(nsqd, topic, [b"one"])
    flags = [f"--nsqd-tcp-address={address(nsqd)}", f"--topic={topic}", "--sync-interval=100ms"]
    tool = Tool(OURS, tmp_path / "one", *flags, "--metrics-address=0")
    try:
        url = tool.start().wait_for(r"metrics at (http://\S+)/metrics")[1]
        wait_until_finished(nsqd, topic, OURS, 1)
        assert requests.get(f"{url}/livez", timeout=60).status_code == 200
        assert requests.get(f"{url}/readyz", timeout=60).status_code == 200
        assert f'topic="{topic}"' in requests.get(f"{url}/metrics", timeout=60).text
        tool.stop()
    finally:
        tool.close()


def test_a_line_on_a_terminal(site: Site, topic: str, tmp_path: Path) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, OURS)
    publish(nsqd, topic, [b"one", b"two"])
    words = [sys.executable, "-m", "gnsqsync.cli", "to-file", f"--topic={topic}"]
    words += [f"--nsqd-tcp-address={address(nsqd)}", f"--output-dir={tmp_path}"]
    words += [f"--channel={OURS}", "--sync-interval=100ms"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(words, stderr=theirs, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    try:
        seen = b""
        while b"1 topic, 2 messages finished" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        try:
            while some := os.read(ours, 4096):
                seen += some
        except OSError:  # the terminal's other end is closed
            pass
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"to-file: 2 messages finished, 8 bytes" in seen and b"stopped" in seen
