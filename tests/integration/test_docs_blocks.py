"""Pieces of Python in the guides that are no whole program, run as they stand."""

from __future__ import annotations

import logging.config
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from requests import certs

from gnsqsync import Message, Reader, Writer
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support.texts import DOCS, ROOT, code_blocks, replaced


def handle(message: object) -> None:
    """What the guides call a handler."""


def run(page: str, number: int = 0, **given: Any) -> dict[str, Any]:
    """The names that are there after a block, or a part of it that makes objects only."""
    block = code_blocks(DOCS / page, "python")[number]
    names = {"Reader": Reader, "Writer": Writer, "handle": handle, **given}
    exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


@pytest.mark.parametrize(("page", "number"), [("guides/consume.rst", 0), ("guides/publish.rst", 0)])
def test_objects_that_a_block_only_makes(page: str, number: int) -> None:
    run(page, number)


def test_a_writer_of_nsqlookupds() -> None:
    run("guides/publish.rst", 1)


def test_a_session_for_nsqlookupds() -> None:
    session = run("guides/consume.rst", 1)["through_the_proxy"]()
    assert session.proxies and session.verify
    session.close()


def test_the_exceptions_of_a_handler() -> None:
    class OrderIsCancelled(Exception):
        pass

    run("guides/dead-letters.rst", OrderIsCancelled=OrderIsCancelled)


@pytest.mark.parametrize("number", [0, 1])
def test_traces_and_errors(number: int) -> None:
    run("guides/observability.rst", number)


def test_a_body_as_an_object(capfd: pytest.CaptureFixture[str]) -> None:
    run("guides/middleware.rst")["pack"](Message(b"0" * 16, b'{"number": 7}', 1, 0, None))  # type: ignore[arg-type]
    assert capfd.readouterr().out == "7\n"


def test_connection_options(tmp_path: Path) -> None:
    (block,) = code_blocks(DOCS / "guides" / "connections.rst", "python")
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    block = replaced(block, {"/etc/nsq/ca.pem": certs.where(), "/run/secrets/nsq": str(secret)})
    names: dict[str, Any] = {"handle": handle}
    exec(block, names)
    assert names["secure"].secret() == b"a secret"


def test_the_http_apis(capfd: pytest.CaptureFixture[str]) -> None:
    block = code_blocks(DOCS / "reference" / "http.rst", "python")[0]
    with Nsqlookupd() as lookupd, Nsqd(lookupd_tcp_addresses=lookupd.tcp_address) as nsqd:
        here = {"127.0.0.1:4151": nsqd.http_address, "127.0.0.1:4161": lookupd.http_address}
        exec(replaced(block, here), {})
    assert "orders 0\n" in capfd.readouterr().out


def test_the_embedded_servers_in_a_program(capfd: pytest.CaptureFixture[str]) -> None:
    names = run("guides/embedded.rst")
    assert "127.0.0.1:" in capfd.readouterr().out
    assert names["nsqd"].log


def test_a_stop_by_a_signal() -> None:
    (block,) = code_blocks(DOCS / "guides" / "shutdown.rst", "python")
    with Nsqd() as nsqd:
        with Writer(nsqd.tcp_address) as writer:
            writer.publish("orders", b"stop")
        program = f"""
import os, signal
from gnsqsync import Reader

def handle(message):
    os.kill(os.getpid(), signal.SIGTERM)

reader = Reader("orders", "billing", handle, nsqd_tcp_addresses={nsqd.tcp_address!r})
{block}
print("clean:", result.clean)
"""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "clean: True\n", done.stderr


def test_the_logging_of_django() -> None:
    (block,) = [
        block
        for block in code_blocks(DOCS / "guides" / "django.rst", "python")
        if block.strip().startswith("LOGGING")
    ]
    names: dict[str, Any] = {}
    exec(block, names)
    logger = logging.getLogger("gnsqsync")
    before = logger.handlers[:], logger.level, logger.propagate
    root = logging.root.handlers[:]
    try:
        logging.config.dictConfig(names["LOGGING"])
        assert logger.level == logging.INFO
        assert [type(handler) for handler in logger.handlers] == [logging.StreamHandler]
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
        logging.root.handlers[:] = root
