"""What a test says that waited in vain."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.waiting import eventually


def in_vain(*args: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as info:
        eventually(*args, timeout=0.0, **options)
    return str(info.value)


def test_the_first_true_result() -> None:
    results = iter([0, "", None, "here"])
    pauses: list[float] = []
    assert eventually(lambda: next(results), pause=0.5, sleep=pauses.append) == "here"
    assert pauses == [0.5] * 3


def test_a_wait_looks_once_more_after_the_last_pause() -> None:
    seen: list[str] = []
    late = eventually(lambda: seen, 0.01, sleep=lambda _: seen.append("late"))
    assert late == ["late"]


def test_without_a_word_it_shows_the_source_and_the_values() -> None:
    seen = ["first"]
    wanted = 2
    text = in_vain(lambda: len(seen) == wanted)
    assert text.startswith("waited 0 s for: ")
    assert "len(seen) == wanted" in text
    assert "the last look gave False" in text
    assert "with seen = ['first']" in text
    assert "with wanted = 2" in text


def test_a_failed_wait_says_its_condition() -> None:
    seen: list[int] = []
    text = in_vain(lambda: seen, describe="a message")
    assert text.splitlines()[0] == "waited 0 s for: a message"
    assert "the last look gave []" in text


def test_a_failed_wait_shows_the_last_values() -> None:
    text = in_vain(lambda: False, describe=lambda: "the log of the server")
    assert "in the end there was:\nthe log of the server" in text


def test_output_that_python_did_not_write() -> None:
    assert "is_set" in in_vain(threading.Event().is_set)
    assert "pop of [" in in_vain([0, 0].pop)


def test_a_long_value_is_cut() -> None:
    many = list(range(1000))
    text = in_vain(lambda: len(many) == 0)
    assert "characters)" in text
    assert len(text) < 1000
