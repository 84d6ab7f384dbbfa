"""The health endpoint of the documentation: it uses public names only, and tells what is wrong."""

from __future__ import annotations

import re
import runpy
from typing import Any

from gnsqsync import Message, ReaderGroup
from tests.component.conftest import Client, Gate
from tests.support.scripted import ScriptedNsqd, automatic, message
from tests.support.texts import DOCS

EXAMPLE = DOCS / "examples" / "health_endpoint.py"


def ask(endpoint: Any, path: str) -> tuple[str, str]:
    told: list[str] = []
    body = b"".join(endpoint({"PATH_INFO": path}, lambda status, headers: told.append(status)))
    return told[0][:3], body.decode()


def test_the_example_uses_no_private_name() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert not re.search(r"\._[a-z]|import _|gnsqsync\.(?!stats\b)\w+ import", text)


def test_the_endpoint_tells_what_hangs_and_what_is_not_ready(client: Client, gate: Gate) -> None:
    example = runpy.run_path(str(EXAMPLE))
    endpoint_of = example["HealthEndpoint"]
    endpoint_of.__call__.__globals__["HANDLER_SECONDS"] = 0.0

    def handle(message: Message) -> None:
        gate(message)

    with (
        ScriptedNsqd([automatic("RDY"), message(b"x", id=b"a" * 16), automatic()]) as nsqd,
        client.writer(nsqd) as writer,
    ):
        reader = client.reader(handle, nsqd)
        group = ReaderGroup([reader], runtime=client.world.runtime)
        endpoint = endpoint_of(group, writer)
        assert ask(endpoint, "/readyz") == ("503", "t/ch has not started\n")
        assert ask(endpoint, "/livez") == ("200", "well\n")
        assert ask(endpoint, "/other") == ("404", "")
        group.start(block=False)
        client.world.eventually(lambda: gate.came == 1)
        assert ask(endpoint, "/livez") == (
            "503",
            "t/ch: a handler has run for 0 s; the limit is 0 s\n",
        )
        (slow,) = group.health(0.0).handlers
        assert slow.message.startswith(f"{'a' * 16} (attempt 1) from 127.0.0.1:")
        assert "gate(message)" in slow.stack
        client.world.eventually(lambda: ask(endpoint, "/readyz") == ("200", "well\n"))
        gate.open()
        client.world.eventually(lambda: ask(endpoint, "/livez") == ("200", "well\n"))
        group.stop()
        group.join()
        assert ask(endpoint, "/readyz") == ("503", "t/ch has stopped\n")
        writer.close()
        assert writer.health("w").not_ready == ("w is closed",)
