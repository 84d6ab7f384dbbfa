"""gnsqsync consume with processes and a reload, and the completion of a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from gnsqsync import NsqdHTTP
from gnsqsync.cli.consume import consume
from gnsqsync.errors import ConfigError
from gnsqsync.process.settings import load_observer
from tests.integration.test_cli import command, environment, http, run, started, tcp
from tests.support.servers import Pool, Server, Site, unique

HANDLERS = """
import os, time

def handle(message):
    with open("seen", "a") as file:
        file.write(f"version 1 {os.getpid()}\\n")
    time.sleep(0.05)
"""


@pytest.fixture
def site(server_pool: Pool) -> Site:
    """What nsqd answers is the matter of other tests."""
    return Site("embedded", server_pool)


@pytest.fixture
def nsqd(site: Site) -> Server:
    return site.nsqd()


def seen(folder: Path, word: str = "") -> list[str]:
    path = folder / "seen"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if word in line]


def test_several_processes(site: Site, nsqd: Server, tmp_path: Path) -> None:
    topic = unique()
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with NsqdHTTP(nsqd.http_address) as client:
        # Twenty seconds of work for one process: the second one finds some, however late it begins.
        client.mpub(topic, [b"x"] * 400)
        arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd), "--processes", "2"]
        with started(arguments, cwd=tmp_path, start_new_session=True) as process:
            assert process.stderr is not None
            site.eventually(lambda: len(set(seen(tmp_path))) == 2)
            assert not seen(tmp_path, f" {process.pid}")
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) == 0
            text = process.stderr.read().decode()
        assert text.count(f"jobs:handle consumes {topic}/c") == 2
        assert len(re.findall("^stopped$", text, re.MULTILINE)) == 2
        # One that no handler had begun when the signal came is requeued at once.
        ends = re.findall(
            r"^jobs:handle: (\d+) finished, \d+ requeued, 0 given up", text, re.MULTILINE
        )
        assert len(ends) == 2
        handled = sum(map(int, ends))
        assert handled == len(seen(tmp_path))

        def counts() -> tuple[int, int]:
            (channel,) = client.stats(topic).topics[0].channels
            return channel.in_flight_count, channel.depth

        site.eventually(lambda: counts() == (0, 400 - handled))


def test_reload(site: Site, nsqd: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The change keeps the file's size, and often its second: what Python compiled looks valid.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    topic = unique()
    jobs = tmp_path / "jobs.py"
    jobs.write_text(HANDLERS)
    arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd), "--reload"]
    with NsqdHTTP(nsqd.http_address) as client:
        with started(arguments, cwd=tmp_path) as process:
            assert process.stderr is not None
            client.pub(topic, b"x")
            site.eventually(lambda: seen(tmp_path, "version 1"))
            jobs.write_text(HANDLERS.replace("version 1", "version 2"))
            text = b""
            # Until then the program of before takes what is published.
            while not re.search(rb"jobs\.py changed; starting again(.|\n)* consumes ", text):
                text += (line := process.stderr.readline())
                assert line, text
            client.pub(topic, b"x")
            site.eventually(lambda: seen(tmp_path, "version 2"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


WATCHING = """
from gnsqsync import Observer

class Noting(Observer):
    def __init__(self, topic, channel):
        self.channel = channel

    def connected(self, nsqd_address):
        with open("seen", "a") as file:
            file.write(f"connected {self.channel}\\n")
"""


def test_metrics_and_an_observer(site: Site, nsqd: Server, tmp_path: Path) -> None:
    topic = unique()
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "watching.py").write_text(WATCHING)
    with NsqdHTTP(nsqd.http_address) as client:
        client.mpub(topic, [b"x"] * 3)
    arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd), "--metrics-address", "0"]
    arguments += ["--observer", "watching:Noting"]
    with started(arguments, cwd=tmp_path) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, b"")
        page = next(line.decode().split(" at ")[1].strip() for line in lines if b" at " in line)
        labels = f'channel="c",outcome="finished",topic="{topic}"'
        line = f"gnsqsync_messages_total{{{labels}}} 3.0"
        site.eventually(lambda: line in requests.get(page, timeout=60).text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert seen(tmp_path, "connected") == ["connected c"]


def test_a_reader_that_ends_by_itself(nsqd: Server) -> None:
    result = run("consume", unique(), "c", "os:remove", "-t", tcp(nsqd), "--tls")
    assert result.returncode == 1
    assert b"gnsqsync: ended by itself: " in result.stderr and b"TLS" in result.stderr


def test_the_examples_for_scripts_name_what_is_there(
    nsqd: Server, site: Site, tmp_path: Path
) -> None:
    """Keys in the help of --json, and in its examples with jq, are those of the output."""
    topic = unique()
    published = run("pub", topic, "-t", tcp(nsqd), "--json", stdin=b"x\n").stdout
    tailed = run("tail", topic, "--nsqd-tcp-address", tcp(nsqd), "-n", "1", "-c", "c", "--json")
    stat = json.loads(run("stat", topic, "-H", http(nsqd), "--once", "--json").stdout)
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_channel(topic, "jobs")
        client.pub(topic, b"x")
    (tmp_path / "jobs.py").write_text(HANDLERS)
    arguments = ["consume", topic, "jobs", "jobs:handle", "-t", tcp(nsqd), "--json"]
    with started(arguments, cwd=tmp_path) as process:
        site.eventually(lambda: seen(tmp_path))
        process.send_signal(signal.SIGTERM)
        consumed = json.loads(process.communicate(timeout=60)[0])
    assert (consumed["channel"], consumed["finished"], consumed["unanswered"]) == ("jobs", 1, 0)
    outputs = {
        "consume": {*consumed},
        "pub": {*json.loads(published)},
        "tail": {*json.loads(tailed.stdout), "body_base64"},
        "stat": {*stat, *stat["servers"][0], *stat["topics"][0]}
        | {*stat["topics"][0]["channels"][0]},
    }
    for name, keys in outputs.items():
        # What depends on the server, or names the row itself.
        keys -= {"version", "health"} if name == "stat" else set()
        text = run(name, "--help").stdout.decode().split("Example: ")[1]
        example, told = text.split("--json prints")
        assert {key for key in keys if not re.search(rf"\b{key}s?\b", told)} == set(), name
        used = re.findall(r"\.(\w+)", example.split("--json | jq")[1])
        assert used and set(used) <= keys, name
        assert re.search(r"^  Exit codes: 0 .+2 wrong\s+usage", told, re.MULTILINE | re.DOTALL)


# Completion


def completed(*words: str) -> list[str]:
    """What a shell would offer for the last of the words."""
    done = subprocess.run(
        command(),
        env={
            **environment(),
            "_GNSQSYNC_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["gnsqsync", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        timeout=60,
    )
    return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]


def test_completion() -> None:
    assert completed("co") == ["consume"]
    assert completed("spark", "re") == ["replay", "report"]
    assert completed("archive", "--interv") == ["--interval"]
    assert {"pub", "tail", "stat", "nsqd", "nsqlookupd"} <= set(completed(""))
    assert completed("consume", "t", "c", "m:f", "--proc") == ["--processes"]
    assert completed("pub", "t", "--policy", "fail") == ["failover"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_of_the_docs_make_a_script(shell: str, tmp_path: Path) -> None:
    script = subprocess.run(
        command(),
        env={**environment(), "_GNSQSYNC_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert "_gnsqsync_completion" in script
    if shell != "bash":
        return
    # The word after the script is what bash would call at the Tab key.
    ask = "COMP_WORDS=(gnsqsync tai); COMP_CWORD=1; _gnsqsync_completion gnsqsync"
    program = tmp_path / "gnsqsync"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gnsqsync.cli "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{ask}\necho "${{COMPREPLY[@]}}"'],
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "tail\n", done.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def handle(message:\n", ("jobs.py", "line 1", "SyntaxError")),
        ("from os import nothing_like_it\n", ("jobs.py", "ImportError", "nothing_like_it")),
    ],
)
@pytest.mark.parametrize("named", [("jobs:handle",), ("os:remove", "--observer", "jobs:handle")])
def test_a_module_that_cannot_be_imported_is_told_without_our_stack(
    tmp_path: Path, named: tuple[str, ...], source: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "jobs.py").write_text(source)
    ended = subprocess.run(
        [sys.executable, "-m", "gnsqsync.cli", "consume", "orders", "billing", *named],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert all(word in ended.stderr for word in ("cannot import 'jobs'", *words))


@pytest.mark.parametrize("named", [(".jobs:handle",), ("os:remove", "--observer", ".jobs:handle")])
def test_a_relative_module_is_wrong_usage(named: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gnsqsync.cli", "consume", "orders", "billing", *named],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "'.jobs:handle' is not of the form package.module:function" in ended.stderr


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("async def handle(message): pass\n", "a coroutine function"),
        ("def handle(message): yield\n", "a generator function"),
        ("def handle(message, log): pass\n", "jobs.handle(message, log): missing a required"),
    ],
)
def test_a_handler_that_cannot_work_is_wrong_usage(tmp_path: Path, source: str, kind: str) -> None:
    (tmp_path / "jobs.py").write_text(source)
    ended = run("consume", "orders", "billing", "jobs:handle", "-t", "127.0.0.1:1", cwd=tmp_path)
    assert ended.returncode == 2
    assert f"'jobs:handle' is {kind}" in " ".join(ended.stderr.decode().split())


@pytest.mark.parametrize(
    ("words", "backoff"),
    [
        ([], True),
        (["--backoff", "every-failure"], "every_failure"),
        (["--backoff", "off"], False),
    ],
)
def test_the_rule_of_the_backoff_is_an_option(words: list[str], backoff: bool | str) -> None:
    words = ["orders", "billing", "json:dumps", "-t", "127.0.0.1:1", *words]
    context = consume.make_context("consume", words)
    assert context.params["backoff"] == backoff


def test_an_observer_of_settings_with_a_syntax_error_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watching_badly.py").write_text("def observer(topic:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"NSQ_OBSERVER is .*watching_badly.py, line 1"):
        load_observer("watching_badly.observer", "NSQ_OBSERVER")
