"""The command line as a user meets it: a process with arguments, pipes, signals and exit codes."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cli import main
from gnsqsync.cli.common import Flag
from gnsqsync.cli.demo_parts import read_lines
from gnsqsync.process.log_output import readable_log
from tests.support.servers import Server, Site, unique

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0

# Runs the command line as if click and rich were not installed.
WITHOUT_CLICK = """
import importlib.util, sys
from gnsqsync.cli import main

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("click", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("click", "rich") else find_spec(name)
sys.meta_path.insert(0, Nothing())
sys.exit(main(sys.argv[1:]))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "PYTHONWARNINGS": "error"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gnsqsync.cli", *arguments]


def run(
    *arguments: str, stdin: bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments),
        input=stdin if stdin is not None else b"",
        capture_output=True,
        timeout=TIMEOUT,
        env=environment(),
        cwd=cwd,
        check=False,
    )


@contextlib.contextmanager
def started(arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        **options,
    )
    with process:  # waits for its end
        try:
            yield process
        finally:
            process.kill()


def tcp(server: Server) -> str:
    return "{}:{}".format(*server.tcp_address)


def http(server: Server) -> str:
    return "{}:{}".format(*server.http_address)


def counts(server: Server, topic: str) -> dict[str, int]:
    """Messages published to the topic, and the consumers of its channels by name."""
    with NsqdHTTP(server.http_address) as nsqd:
        found = {}
        for each in nsqd.stats(topic).topics:
            found["messages"] = each.message_count
            found.update({c.channel_name: c.client_count for c in each.channels})
        return found


def sentence(result: subprocess.CompletedProcess[bytes]) -> str:
    """The error text: it has no traceback."""
    text = result.stderr.decode()
    assert "Traceback" not in text
    assert text.strip()
    return text


# The group


def test_version_and_help() -> None:
    assert re.fullmatch(rb"gnsqsync, version \S+\n", run("--version").stdout)
    text = run("--help").stdout.decode()
    for name in ("demo", "pub", "tail", "consume", "stat", "nsqd", "nsqlookupd"):
        assert f"  {name} " in text


@pytest.mark.parametrize("name", ["demo", "pub", "tail", "consume", "stat"])
def test_each_help_has_an_example(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    help_ = capfd.readouterr().out
    assert "Example: " in help_
    assert f"gnsqsync {name} " in help_


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("pub",),
        ("pub", "t", "/no/such/file"),
        ("pub", "t", "--batch", "0"),
        ("pub", "t", "-t", "127.0.0.1:99999"),
        ("pub", "no spaces"),
        ("tail", "no spaces"),
        ("tail", "t", "-n", "127.0.0.1:4150"),
        # Digits for isdigit(), and none for int(); and more than int() reads.
        ("tail", "t", "-n", "²"),
        ("tail", "t", "-n", "9" * 5000),
        ("tail", "t", "--snappy", "--deflate"),
        ("consume", "t", "c", "no_colon"),
        ("consume", "t", "c", "no_such_module:handle"),
        ("consume", "t", "c", "os:no_such_function"),
        ("consume", "t", "c", "os:sep"),
        ("consume", "t", "c", "os:remove", "--metrics-address", "²"),
        ("stat", "-H", "ftp://x"),
        ("stat", "no spaces", "--once"),
        ("stat", "t", "-c", "no spaces", "--once"),
        ("demo", "/no/such/file"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, as none of them comes to doing anything."""
    # What commands change in their process.
    monkeypatch.setattr(sys, "path", list(sys.path))
    with readable_log():
        assert main(arguments) == 2
    shown = capfd.readouterr()
    assert shown.err.strip()
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_wrong_usage_as_a_process() -> None:
    # Whatever there is to publish.
    result = run("pub", "no spaces", stdin=b"")
    assert result.returncode == 2
    sentence(result)


def test_without_click_and_rich() -> None:
    def run_without(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_CLICK, *arguments],
            capture_output=True,
            timeout=TIMEOUT,
            env=environment(),
            check=False,
        )

    result = run_without("pub", "t")
    assert result.returncode == 1
    assert 'pip install "gnsqsync[cli]"' in sentence(result)
    for name in ("nsqd", "nsqlookupd"):
        result = run_without(name, "--version")
        assert result.returncode == 0
        assert name.encode() in result.stdout


# pub


def test_pub_from_stdin(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    result = run("pub", topic, "-t", tcp(nsqd), stdin=b"one\n\ntwo\r\nthree")
    assert result.returncode == 0, result.stderr
    assert (
        f"published 3 messages (12 bytes) to {topic}, 1 empty line skipped"
        in result.stdout.decode()
    )
    client = site.client(nsqd)
    client.command(f"SUB {topic} c")
    client.ok()
    client.command("RDY 10")
    assert sorted(message.body for message in client.messages(3)) == [b"one", b"three", b"two\r"]


def test_pub_from_a_file_as_json(site: Site, tmp_path: Path) -> None:
    nsqd, topic = site.nsqd(), unique()
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"line %d\n" % n for n in range(2500)))
    result = run("pub", topic, str(file), "-t", tcp(nsqd), "--json", "--batch", "100")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["topic"], answer["published"], answer["error"]) == (topic, 2500, None)
    assert counts(nsqd, topic)["messages"] == 2500


def test_pub_sends_each_line_as_it_comes(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    with started(["pub", topic, "-t", tcp(nsqd)]) as process:
        assert process.stdin is not None
        for count in (1, 2):
            process.stdin.write(b"a line\n")
            process.stdin.flush()
            site.eventually(lambda count=count: counts(nsqd, topic).get("messages") == count)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 128 + signal.SIGINT
        assert process.stdout is not None
        assert b"published 2 messages" in process.stdout.read()


def test_pub_to_nobody() -> None:
    result = run("pub", "t", "-t", "127.0.0.1:1", "--timeout", "1", stdin=b"a line\n")
    assert result.returncode == 1
    assert "127.0.0.1:1" in sentence(result)
    assert b"published 0 messages" in result.stdout


def test_pub_of_a_line_that_is_too_long(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    lines = b"one\n" + b"x" * 200 + b"\nthree\n"
    result = run("pub", topic, "-t", tcp(nsqd), "--max-msg-size", "100", stdin=lines)
    assert result.returncode == 1
    assert "line 2 is longer" in sentence(result)
    assert counts(nsqd, topic)["messages"] == 1


def test_pub_of_lines_that_no_mpub_can_take(site: Site) -> None:
    nsqd, topic = site.own_nsqd("-max-msg-size=8000000"), unique()
    # The longest of an MPUB, and one byte more.
    sizes = [3, 5242872, 5242873, 5]
    lines = b"\n".join(b"x" * size for size in sizes)
    words = ("pub", topic, "-t", tcp(nsqd), "--timeout", "60", "--json", "--max-msg-size")
    result = run(*words, "8000000", stdin=lines)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["published"], answer["bytes"]) == (4, sum(sizes))
    assert counts(nsqd, topic)["messages"] == 4
    # What nsqd itself refuses has its line.
    result = run(*words, "9000000", stdin=b"one\n" + b"x" * 8000001)
    assert result.returncode == 1
    assert "line 2: " in sentence(result) and "E_BAD_MESSAGE" in sentence(result)
    assert json.loads(result.stdout)["published"] == 1


def test_a_feature_that_nsqd_lacks_is_one_sentence(site: Site) -> None:
    nsqd = site.nsqd()
    result = run("pub", unique(), "-t", tcp(nsqd), "--tls", stdin=b"a line\n")
    assert result.returncode == 1
    assert "TLS" in sentence(result)
    result = run("tail", unique(), "--nsqd-tcp-address", tcp(nsqd), "--tls")
    assert result.returncode == 1
    assert "TLS" in sentence(result)


# tail


def test_tail_counts_and_leaves_no_channel(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.mpub(topic, [b"one", b"two", b"three"])
        result = run("tail", topic, "--nsqd-tcp-address", tcp(nsqd), "-n", "2")
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.splitlines()) == 2
        site.eventually(lambda: client.stats(topic).topics[0].channels == ())


def test_tail_that_misses_messages_says_so_and_ends_with_its_count(site: Site) -> None:
    """With --mem-queue-size=0 a channel of tail's own keeps nothing for it."""
    nsqd, topic = site.own_nsqd("-mem-queue-size=0"), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        with started(["tail", topic, "--nsqd-tcp-address", tcp(nsqd), "-n", "50"]) as process:
            assert process.stdout is not None and process.stderr is not None
            site.eventually(lambda: 1 in counts(nsqd, topic).values())
            client.mpub(topic, [b"%d" % number for number in range(50)])
            said = process.stderr.readline().decode()
            found = re.fullmatch(
                r"tail: (\d+) of 50 messages so far; waits for more, until Ctrl-C; nsqd drops what"
                r" does not fit in its memory \(--mem-queue-size\), see --help\n",
                said,
            )
            assert found is not None, said
            assert int(found[1]) < 50

            def ended_by_one_more() -> bool:
                client.pub(topic, b"more")
                return process.poll() is not None

            site.eventually(ended_by_one_more)
            assert process.wait(TIMEOUT) == 0
            assert process.stderr.read() == b""


def test_tail_of_a_channel_with_a_name_misses_nothing(site: Site) -> None:
    nsqd, topic = site.own_nsqd("-mem-queue-size=0"), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        words = ["tail", topic, "-c", "look", "--nsqd-tcp-address", tcp(nsqd), "-n", "50"]
        with started(words) as process:
            assert process.stdout is not None
            site.eventually(lambda: 1 in counts(nsqd, topic).values())
            bodies = {b"%d" % number for number in range(50)}
            client.mpub(topic, sorted(bodies))
            assert {process.stdout.readline().strip() for _ in bodies} == bodies
            assert process.wait(TIMEOUT) == 0


def test_tail_as_json_by_discovery_until_a_signal(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={tcp(lookupd)}")
    topic = unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic(topic)
        with site_lookup(site, lookupd, topic):
            pass
        with started(["tail", topic, "-l", http(lookupd), "--json"]) as process:
            assert process.stdout is not None
            site.eventually(lambda: 1 in counts(nsqd, topic).values())
            client.mpub(topic, ["zwölf", b"\xff\x00"])
            entries = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0
    bodies = {e.get("body") or base64.b64decode(e["body_base64"]) for e in entries}
    assert bodies == {"zwölf", b"\xff\x00"}
    assert entries[0]["topic"] == topic
    assert entries[0]["nsqd_address"] == tcp(nsqd)
    assert entries[0]["attempts"] == 1


@contextlib.contextmanager
def site_lookup(site: Site, lookupd: Server, topic: str) -> Iterator[None]:
    """Entered when the nsqlookupd knows who has the topic."""
    from gnsqsync.errors import HTTPError

    def is_known() -> bool:
        try:
            return bool(client.lookup(topic).producers)
        except HTTPError:
            return False

    with LookupdHTTP(lookupd.http_address) as client:
        site.eventually(is_known)
        yield


def test_tail_into_a_pipe_that_closes(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.pub(topic, b"one")
        with started(["tail", topic, "--nsqd-tcp-address", tcp(nsqd)]) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"one\n"
            process.stdout.close()
            client.pub(topic, b"two")
            assert process.wait(TIMEOUT) == 0
            assert process.stderr.read() == b""


# consume

HANDLERS = """
import sys

def handle(message):
    with open("seen", "a") as file:
        file.write(message.body.decode() + "\\n")
    if message.body == b"broken":
        raise ValueError("this one is broken")
    if message.body == b"stuck":
        import time
        time.sleep(600)
"""


def test_consume_a_handler_of_the_working_directory(site: Site, tmp_path: Path) -> None:
    nsqd, topic = site.nsqd(), unique()
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with NsqdHTTP(nsqd.http_address) as client:
        client.mpub(topic, [b"one", b"two", b"three"])
        arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd), "--concurrency", "2"]
        with started(arguments, cwd=tmp_path) as process:
            assert process.stderr is not None
            seen = tmp_path / "seen"
            site.eventually(lambda: seen.exists() and len(seen.read_text().split()) == 3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0
            assert b"3 finished, 0 requeued, 0 given up" in process.stderr.read()
        (channel,) = client.stats(topic).topics[0].channels
        assert (channel.depth, channel.in_flight_count) == (0, 0)


def test_consume_gives_a_failing_message_up(site: Site, tmp_path: Path) -> None:
    nsqd, topic = site.nsqd(), unique()
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with NsqdHTTP(nsqd.http_address) as client:
        client.pub(topic, b"broken")
        arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd)]
        arguments += ["--max-attempts", "2", "--requeue-delay", "0", "--on-giving-up", "discard"]
        with started(arguments, cwd=tmp_path) as process:
            assert process.stderr is not None
            text = b""
            while b"this one is broken" not in text:
                text += process.stderr.readline()
            site.eventually(lambda: client.stats(topic).topics[0].channels[0].requeue_count == 1)
            site.eventually(
                lambda: (
                    (channel := client.stats(topic).topics[0].channels[0])
                    and channel.depth + channel.in_flight_count + channel.deferred_count == 0
                ),
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT) == 0
            assert b"1 given up" in process.stderr.read()
    assert (tmp_path / "seen").read_text() == "broken\n" * 2


def test_consume_says_so_when_a_handler_does_not_end(site: Site, tmp_path: Path) -> None:
    nsqd, topic = site.nsqd(), unique()
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with NsqdHTTP(nsqd.http_address) as client:
        client.pub(topic, b"stuck")
    arguments = ["consume", topic, "c", "jobs:handle", "-t", tcp(nsqd), "--shutdown-timeout", "0.2"]
    with started(arguments, cwd=tmp_path) as process:
        site.eventually(lambda: (tmp_path / "seen").exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 1


# stat


def test_stat_once(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic(topic)
        client.create_channel(topic, "c")
        client.mpub(topic, [b"one", b"two"])
        client.pause_channel(topic, "c")
        site.eventually(lambda: client.stats(topic).topics[0].channels[0].depth == 2)
    result = run("stat", topic, "-H", http(nsqd), "--once", "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    (found,) = answer["topics"]
    assert (found["topic"], found["messages"], found["depth"]) == (topic, 2, 0)
    (channel,) = found["channels"]
    assert channel["channel"] == "c"
    assert (channel["depth"], channel["paused"], channel["clients"]) == (2, True, 0)
    assert channel["messages_per_second"] is None
    plain = run("stat", topic, "-H", http(nsqd), "--once").stdout.decode()
    assert f"topic={topic} channel=c depth=2 in_flight=0 deferred=0" in plain


def test_stat_adds_up_nsqds_and_shows_those_that_fail(site: Site) -> None:
    servers, topic = [site.nsqd(), site.own_nsqd()], unique()
    for server in servers:
        with NsqdHTTP(server.http_address) as client:
            client.pub(topic, b"x")
    addresses = ["-H", http(servers[0]), "-H", http(servers[1])]
    result = run("stat", topic, *addresses, "-H", "127.0.0.1:1", "--once", "--json")
    assert result.returncode == 0
    answer = json.loads(result.stdout)
    assert answer["topics"][0]["messages"] == 2
    errors = [server["error"] for server in answer["servers"]]
    assert errors[:2] == [None, None]
    assert "refused" in errors[2]


def test_stat_beside_an_nsqd_that_registers_nonsense(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd, topic = site.own_nsqd(f"-lookupd-tcp-address={tcp(lookupd)}"), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.pub(topic, b"x")
    info = {"broadcast_address": "other", "hostname": "other", "version": "1.3.0"}
    body = json.dumps({**info, "tcp_port": 4150, "http_port": 70000}).encode()
    with (
        socket.create_connection(lookupd.tcp_address, TIMEOUT) as other,
        LookupdHTTP(lookupd.http_address) as asked,
    ):
        other.sendall(b"  V1IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        site.eventually(lambda: len(asked.nodes()) == 2)
        result = run("stat", "--once", "--json", "-l", http(lookupd))
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert [found["topic"] for found in answer["topics"]] == [topic]
    errors = {server["address"]: server["error"] for server in answer["servers"]}
    assert "65535" in errors.pop("other:70000")
    assert [*errors.values()] == [None, None]


def test_stat_of_nobody() -> None:
    result = run("stat", "-H", "127.0.0.1:1", "--once")
    assert result.returncode == 1
    assert b"error: " in result.stdout


def test_stat_rates(site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic(topic)
        arguments = ["stat", topic, "-H", http(nsqd), "--json", "--interval", "0.2"]
        with started(arguments) as process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert first["topics"][0]["messages_per_second"] is None
            client.pub(topic, b"x")
            rates = (json.loads(line)["topics"][0] for line in process.stdout)
            assert any(rate["messages_per_second"] > 0 for rate in rates)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT) == 0


# demo


def test_demo_with_the_text_of_the_package() -> None:
    result = run("demo")
    assert result.returncode == 0, (result.stdout, result.stderr)
    text = result.stdout.decode()
    total = len(read_lines(None))
    assert f"every one of the {total:,} lines arrived" in text
    assert f"published {total:,} lines from 4 threads" in text
    assert "40 handlers failed on purpose" in text
    assert "backoff level 1" in text


def test_demo_stopped_by_a_signal() -> None:
    with started(["demo", "--work", "100"]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"nsqlookupd at"):
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 128 + signal.SIGINT
        assert process.stdout.read() == b"stopped before the end\n"


def test_a_wait_without_end() -> None:
    flag = Flag()
    # Meanwhile the wait begins; where it does not, it ends at once.
    timer = threading.Timer(0.2, flag.set)
    timer.start()
    assert flag.wait(math.inf)
    timer.join()
