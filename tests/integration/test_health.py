"""The pages beside a command that consumes, and the commands that ask them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from gnsqsync import NsqdHTTP
from gnsqsync.cli import main
from gnsqsync.embedded import Nsqd
from gnsqsync.process.web_page import served, text_page
from tests.support.forks import Forks
from tests.support.ports import free_ports
from tests.support.programs import Program
from tests.support.servers import unique

HANDLERS = """
import time

def handle(message):
    print("begun", flush=True)
    time.sleep(float(message.body))
"""
PATCHED = """
from gevent import monkey
monkey.patch_all()
from gnsqsync.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def nsqd(emptied_nsqd: Nsqd) -> Nsqd:
    return emptied_nsqd


def tcp(nsqd: Nsqd) -> str:
    return nsqd.tcp_address


@pytest.fixture(params=["gnsqsync", "patched"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """``gnsqsync``, and the same in a process that gevent has patched."""
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "patched.py").write_text(PATCHED)
    return ["gnsqsync"] if request.param == "gnsqsync" else ["python", "patched.py"]


@contextmanager
def running(words: list[str], folder: Path, forks: Forks) -> Iterator[tuple[Program, str]]:
    """A consumer and where its pages are."""
    # gevent patches before all imports, which a fork has done.
    program = Program(words, folder, forks=None if "patched.py" in words else forks)
    try:
        found = program.wait_for(r"metrics at (http://\S+)/metrics")
        yield program, found[1]
    finally:
        program.kill()


def get(url: str) -> tuple[int, str]:
    answer = requests.get(url, timeout=60)
    return answer.status_code, answer.text


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["health", *words])
    output = capsys.readouterr()
    return code, output.out + output.err


def consume(program: list[str], topic: str, nsqd: Nsqd, *more: str) -> list[str]:
    words = [*program, "consume", topic, "c", "jobs:handle", "-t", tcp(nsqd)]
    return [*words, "--metrics-address", "0", *more]


def test_a_consumer_from_its_start_to_its_drain(
    program: list[str],
    nsqd: Nsqd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    forks: Forks,
) -> None:
    topic = unique("health")
    words = consume(program, topic, nsqd, "--concurrency", "2")
    with running(words, tmp_path, forks) as (consumer, page):
        consumer.eventually(lambda: get(f"{page}/readyz") == (200, "ready\n"))
        assert get(f"{page}/livez") == (200, "alive\n")
        assert "gnsqsync_connections{" in get(f"{page}/metrics")[1]
        assert ask(capsys, "--address", page) == (0, f"{page}/livez: alive\n")
        assert ask(capsys, "--address", page, "--ready") == (0, f"{page}/readyz: ready\n")
        with NsqdHTTP(nsqd.http_address) as client:
            client.pub(topic, b"5")
        consumer.wait_for("begun")
        consumer.signal(signal.SIGTERM)
        consumer.eventually(lambda: get(f"{page}/readyz") == (503, f"{topic}/c is stopping\n"))
        assert get(f"{page}/livez")[0] == 200, "it drains: nobody may kill it"
        code, text = ask(capsys, "--address", page, "--ready")
        assert (code, text) == (1, f"{page}/readyz: {topic}/c is stopping\n")
        assert "1 finished" in consumer.end(0)
    assert ask(capsys, "--address", page) == (1, f"{page}/livez: Connection refused\n")


def test_an_nsqd_that_is_away_makes_it_not_ready_and_no_more(
    program: list[str], tmp_path: Path, forks: Forks
) -> None:
    topic = unique("health")
    with (
        Nsqd() as nsqd,
        running(consume(program, topic, nsqd), tmp_path, forks) as (consumer, page),
    ):
        consumer.eventually(lambda: get(f"{page}/readyz")[0] == 200)
        nsqd.stop()
        away = (503, f"{topic}/c has no connection to an nsqd\n")
        consumer.eventually(lambda: get(f"{page}/readyz") == away)
        assert get(f"{page}/livez") == (200, "alive\n")


def test_a_handler_that_runs_longer_than_the_limit(
    program: list[str],
    nsqd: Nsqd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    forks: Forks,
) -> None:
    topic = unique("health")
    words = consume(program, topic, nsqd, "--handler-limit", "0.5")
    with running(words, tmp_path, forks) as (consumer, page):
        with NsqdHTTP(nsqd.http_address) as client:
            client.pub(topic, b"60")
        consumer.eventually(lambda: get(f"{page}/livez")[0] == 503)
        code, text = ask(capsys, "--address", page)
        assert code == 1
        assert "a handler has run for" in text and text.endswith("; the limit is 0.5 s\n")
        assert get(f"{page}/readyz")[0] == 200


def test_each_of_several_processes(
    nsqd: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str], forks: Forks
) -> None:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    words = consume(["gnsqsync"], unique("health"), nsqd, "--processes", "2")
    with ExitStack() as stack:
        port, *_ = stack.enter_context(free_ports(3, in_a_row=True))
        words[words.index("--metrics-address") + 1] = str(port)
        consumer, _ = stack.enter_context(running(words, tmp_path, forks))
        address = ["--address", f"127.0.0.1:{port}", "--ready", "--processes"]
        consumer.eventually(lambda: main(["health", *address, "2"]) == 0)
        capsys.readouterr()
        assert ask(capsys, *address, "2") == (0, f"http://127.0.0.1:{port + 1}/readyz: ready\n")
        code, text = ask(capsys, *address, "3")
        assert code == 1 and f"127.0.0.1:{port + 2}" in text


# -- the server ----------------------------------------------------------------------------------


@pytest.fixture
def url() -> Iterator[str]:
    pages: Any = {
        "/good": text_page(lambda: (True, ["fine"])),
        "/bad": text_page(lambda: (False, ["one", "two"])),
    }
    with served("127.0.0.1", 0, pages) as port:
        yield f"http://127.0.0.1:{port}"


def test_paths_and_methods(url: str) -> None:
    assert get(f"{url}/good?a=b") == (200, "fine\n")
    assert get(f"{url}/bad") == (503, "one\ntwo\n")
    for path in ("/", "/healthz", "/good/", "/good/x"):
        assert get(url + path) == (404, "there is only /good, /bad\n")
    head = requests.head(f"{url}/bad", timeout=60)
    assert (head.status_code, head.headers["Content-Length"], head.content) == (503, "8", b"")
    assert requests.head(f"{url}/x", timeout=60).status_code == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = requests.request(method, f"{url}/good", timeout=60)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_ipv6(capsys: pytest.CaptureFixture[str]) -> None:
    pages: Any = {"/livez": text_page(lambda: (True, ["alive"]))}
    with served("::1", 0, pages) as port:
        assert ask(capsys, "--address", f"[::1]:{port}") == (
            0,
            f"http://[::1]:{port}/livez: alive\n",
        )


# -- what health says of others, and of its options ----------------------------------------------


def test_port_that_another_program_has_is_told(
    nsqd: Nsqd, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = ask(capsys, "--address", nsqd.http_address)
    assert code == 1
    assert "/livez: answered 404 Not Found; is that the --metrics-address of a consumer?" in text
    code, text = ask(capsys, "--address", tcp(nsqd))
    assert code == 1 and text.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, text = ask(capsys, "--address", str(port), "--timeout", "0.1")
    assert (code, text) == (1, f"http://127.0.0.1:{port}/livez: no answer within 0.1 s\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--address", "x"], "is 'x'; it must be PORT or HOST:PORT, with a port from 0 to 65535"),
        (["--address", "a:65536"], "with a port from 0 to 65535"),
        (["--address", "0"], "the address has port 0; give the port that the consumer printed"),
        (["--address", "a:1/livez"], "a path needs a URL, such as http://a:1/livez"),
        (["--address", "http://a:1/healthz"], "is '/healthz'; it must be /livez or /readyz"),
        (["--address", "https://a:1"], "it must be PORT, HOST:PORT or http://HOST:PORT"),
        (["--address", "http://a:99999"], "which is no URL: Port out of range 0-65535"),
        (["--address", "http://"], "it must be PORT, HOST:PORT or http://HOST:PORT"),
        (["--address", "65535", "--processes", "2", "--timeout", "0.1"], "65535"),
        (["--timeout", "0"], "timeout is 0.0 seconds; allowed is 0.001"),
        (["--timeout", "nan"], "timeout"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = ask(capsys, *words)
    assert code in (1, 2) and text in found and found.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--handler-limit", "5"], "--handler-limit needs --metrics-address too"),
        (["--handler-limit", "0", "--metrics-address", "0"], "--handler-limit is 0.0 seconds"),
        (["--handler-limit", "nan", "--metrics-address", "0"], "--handler-limit"),
    ],
)
def test_a_bad_limit(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "t", "c", "os:remove", *words]) == 2
    assert text in capsys.readouterr().err
