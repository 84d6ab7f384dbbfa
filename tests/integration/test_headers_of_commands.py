"""Commands open envelopes of messages and make them; with ``--raw`` the bytes stay."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqsync import Message, NsqdHTTP, Reader
from gnsqsync.cli import main
from gnsqsync.embedded import Nsqd
from gnsqsync.envelope import MAGIC, decode, encode
from tests.support.waiting import eventually

WRAPPED = encode({"key": "order-7", "source": "shop"}, b"seven")
# An odd number of parts, so these are no headers.
LOOKALIKE = MAGIC + b"\0\5hello world"
CAME = {WRAPPED, LOOKALIKE, b"plain"}
OPENED = {b"seven", LOOKALIKE, b"plain"}

Run = Callable[..., int]


@pytest.fixture
def nsqd(emptied_nsqd: Nsqd) -> Nsqd:
    return emptied_nsqd


@pytest.fixture
def http(nsqd: Nsqd) -> Iterator[NsqdHTTP]:
    """An nsqd with a topic ``orders`` and a channel, in which three messages wait."""
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic("orders")
        client.create_channel("orders", "look")
        for body in (WRAPPED, LOOKALIKE, b"plain"):
            client.pub("orders", body)
        yield client


@pytest.fixture
def run(nsqd: Nsqd, http: NsqdHTTP) -> Run:
    def run(*words: str) -> int:
        return main([*words, "--nsqd-tcp-address", nsqd.tcp_address])

    return run


@pytest.mark.parametrize(("flags", "expected"), [([], OPENED), (["--raw"], CAME)])
def test_tail(
    run: Run, capfdbinary: pytest.CaptureFixture[bytes], flags: list[str], expected: set[bytes]
) -> None:
    assert run("tail", "orders", "-c", "look", "-n", "3", *flags) == 0
    assert set(capfdbinary.readouterr().out.splitlines()) == expected


def test_tail_as_json_has_the_headers(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("tail", "orders", "-c", "look", "-n", "3", "--json") == 0
    entries = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    found = {
        each.get("body") or base64.b64decode(each["body_base64"]): each.get("headers")
        for each in entries
    }
    assert found == {
        "seven": {"key": "order-7", "source": "shop"},
        "plain": None,
        LOOKALIKE: None,
    }


HANDLERS = """
seen = []


def note(message):
    seen.append((message.body, dict(message.headers)))


def fail(message):
    note(message)
    raise ValueError("no price")
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "headers_shop.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "headers_shop"
    sys.modules.pop("headers_shop", None)


@pytest.mark.parametrize(
    ("flags", "expected", "letters"),
    [
        ([], OPENED, CAME),
        (["--raw"], CAME, CAME),
        (["--headers"], {b"seven", b" world", b"plain"}, None),
    ],
)
def test_consume(
    run: Run,
    nsqd: Nsqd,
    handlers: str,
    flags: list[str],
    expected: set[bytes],
    letters: set[bytes] | None,
) -> None:
    """Who did not ask for headers publishes no dead letter in an envelope of its own."""
    words = ["--max-messages", "3", "--max-attempts", "1", "--dead-letter-topic", "orders-dead"]
    code = run("consume", "orders", "look", f"{handlers}:fail", "--backoff", "off", *words, *flags)
    assert code == 0
    seen = sys.modules[handlers].seen
    assert {body for body, _ in seen} == expected
    has_headers = {"key": "order-7", "source": "shop"} in [headers for _, headers in seen]
    assert has_headers == (flags != ["--raw"])
    with Reader("orders-dead", "look", nsqd_tcp_addresses=nsqd.tcp_address) as reader:
        batches = reader.batches(1, 10.0)
        found: set[bytes] = set()
        while len(found) < 3:
            batch: list[Message] = next(batches)
            found |= {message.body for message in batch}
            reader.finish(batch)
    if letters is not None:
        assert found == letters
    else:
        told = [decode(body) for body in found]
        assert all(each and each[0]["deadreason"] == "ValueError: no price" for each in told)


def test_consume_takes_one_of_the_two(run: Run, handlers: str) -> None:
    assert run("consume", "orders", "look", f"{handlers}:note", "--raw", "--headers") == 2


@pytest.mark.parametrize(("flags", "expected"), [([], OPENED), (["--raw"], CAME)])
def test_to_file(
    run: Run,
    http: NsqdHTTP,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    expected: set[bytes],
) -> None:
    def finished() -> bool:
        (channel,) = http.stats("orders", "look").topics[0].channels
        return not channel.depth + channel.in_flight_count

    def stop() -> None:
        try:
            eventually(finished)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    words = ["--topic", "orders", "--channel", "look", "--sync-interval", "100ms"]
    assert run("to-file", *words, "--output-dir", str(tmp_path), *flags) == 0
    stopper.join()
    (written,) = tmp_path.iterdir()
    assert set(written.read_bytes().splitlines()) == expected
    told = [line for line in caplog.messages if "are not written, only the bodies" in line]
    assert len(told) == (not flags)


def published(run: Run, http: NsqdHTTP, tmp_path: Path, *flags: str) -> list[bytes]:
    """The bytes that ``pub`` sends for two lines."""
    http.create_topic("new")
    (tmp_path / "lines").write_bytes(b"one\n\ntwo\n")
    assert run("pub", "new", str(tmp_path / "lines"), *flags) == 0
    with Reader("new", "look", nsqd_tcp_addresses=_tcp(http)) as reader:
        found: list[bytes] = []
        for batch in reader.batches(1, 10.0):
            found += [message.body for message in batch]
            reader.finish(batch)
            if len(found) == 2:
                break
    return found


def _tcp(http: NsqdHTTP) -> str:
    info = http.info()
    return f"127.0.0.1:{info.tcp_port}"


@pytest.mark.parametrize("defer", [[], ["--defer", "0"]])
def test_pub_with_headers(run: Run, http: NsqdHTTP, tmp_path: Path, defer: list[str]) -> None:
    words = ["--header", "source=shop", "--header", "note=a=b"]
    opened = [decode(body) for body in published(run, http, tmp_path, *words, *defer)]
    assert {each and each[1] for each in opened} == {b"one", b"two"}
    keys = {each[0].pop("key") for each in opened if each}
    assert len(keys) == 2
    assert [each and each[0] for each in opened] == [{"source": "shop", "note": "a=b"}] * 2


def test_pub_with_keys_alone_and_without(run: Run, http: NsqdHTTP, tmp_path: Path) -> None:
    opened = [decode(body) for body in published(run, http, tmp_path, "--headers")]
    assert [each and [*each[0]] for each in opened] == [["key"]] * 2
    assert set(published(run, http, tmp_path)) == {b"one", b"two"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--header", "source"], "is not of the form NAME=VALUE"),
        (["--header", "=x"], "must be 1 to 255 bytes"),
        (["--header", "key=1"], "each message gets a 'key' of its own"),
        (["--header", "a=1", "--header", "a=2"], "is given twice"),
    ],
)
def test_headers_that_are_refused(
    run: Run, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run("pub", "new", os.devnull, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_headers_count_for_the_longest_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_bytes(b"x" * 100 + b"\n")
    words = ["pub", "new", str(tmp_path / "lines"), "--max-msg-size", "110"]
    assert run(*words) == 0
    assert run(*words, "--headers") == 1
    assert "110 bytes, 43 of them for the headers" in capsys.readouterr().err
