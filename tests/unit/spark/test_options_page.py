"""The page of Spark's options against the code: each option, with its default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.spark import options, sink_options
from tests.support.texts import DOCS

PAGE = DOCS / "spark" / "options.rst"
ROW = re.compile(r"^   \* - ``(\S+?)``[^\n]*\n     - ([^\n]*)\n", re.MULTILINE)
# Spelled as Kafka spells them; or refused with a reason of their own.
UNLISTED = {"topic", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "path"}


class Recorder(options.Given):
    """Notes each option that is asked for, and the default it is asked with."""

    asked: dict[str, Any]

    def __init__(self, given: Mapping[str, str], *others: Any, **more: Any) -> None:
        super().__init__(given, *others, **more)
        Recorder.asked = {}

    def take(self, name: str, *aliases: str) -> str | None:
        for spelling in (name, *aliases):
            self.asked.setdefault(spelling, None)
        return super().take(name, *aliases)

    def count(self, name: str, default: int, low: int = 1) -> int:
        self.asked[name] = str(default)
        return super().count(name, default, low)

    def flag(self, name: str, default: bool) -> bool:
        self.asked[name] = str(default).lower()
        return super().flag(name, default)


def rows(title: str) -> dict[str, str]:
    """Option -> default of the table under a heading."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.split(rf"^{title}\n-+\n", text, flags=re.MULTILINE)[1]
    found = dict(ROW.findall(re.split(r"^\w+\n-+\n", part, flags=re.MULTILINE)[0]))
    assert found.pop("nsq.") == "of the client"
    return found


def check(table: dict[str, str], asked: dict[str, Any], unlisted: set[str]) -> None:
    assert {name for name in asked if name not in unlisted} == set(table)
    texts = {name: table[name].strip("`") for name in table if asked[name] is not None}
    assert texts == {name: asked[name] for name in texts}


def test_the_page_lists_every_option_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "Given", Recorder)
    given = {"subscribe": "t", "channel": "c", "nsqdTcpAddresses": "h:1", "walPath": "/w"}
    options.SourceOptions.parse(given, streaming=True)
    check(rows("Reading"), Recorder.asked, UNLISTED)


def test_limits_of_the_sink_are_those_of_a_writer() -> None:
    of_writer = inspect.signature(Writer).parameters
    sink = sink_options.SinkOptions(nsqds=())
    assert sink.max_message_bytes == of_writer["max_msg_size"].default
    assert sink.max_defer_ms == 1000 * of_writer["max_defer"].default


def test_the_page_lists_every_option_of_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_options, "Given", Recorder)
    sink_options.SinkOptions.parse({"nsqdTcpAddresses": "h:1", "topic": "t"})
    check(rows("Writing"), Recorder.asked, {"path"})
