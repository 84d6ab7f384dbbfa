"""Exceptions of foreign code: which end a worker, and what is told of each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from gnsqsync.errors import TimeLimitInterrupt
from gnsqsync.foreign import class_of, ends_worker, line_of, repr_of, text_of, traceback_of


class Own(BaseException):
    """An exception of a user's, as gevent.Timeout is one of a library's."""


class Mute(Exception):
    """An exception whose texts fail."""

    def __str__(self) -> str:
        raise Own

    __repr__ = __str__


class Chatty(Exception):
    def __str__(self) -> str:
        return str(self)


FAILURES = [
    ValueError(),
    asyncio.CancelledError(),
    GeneratorExit(),
    SystemExit(1),
    Own(),
    TimeLimitInterrupt(),
    BaseExceptionGroup("two", [Own(), ValueError()]),
]


@pytest.mark.parametrize("error", FAILURES, ids=class_of)
def test_an_error_of_user_code_is_a_failure_of_the_call(error: BaseException) -> None:
    assert not ends_worker(error)


def on_a_thread(ask: Callable[[], bool]) -> bool:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    thread.join()
    return answers[0]


def test_ctrl_c_ends_the_process_and_comes_on_the_main_thread_only() -> None:
    assert ends_worker(KeyboardInterrupt())
    assert not on_a_thread(lambda: ends_worker(KeyboardInterrupt()))


def test_greenlet_exit_ends_a_greenlet_and_no_thread() -> None:
    import greenlet

    assert not ends_worker(greenlet.GreenletExit())
    assert greenlet.greenlet(lambda: ends_worker(greenlet.GreenletExit())).switch()
    assert not greenlet.greenlet(lambda: ends_worker(Own())).switch()


@pytest.mark.parametrize("text", ["", "plain", "two\nlines", "ärger \U0001f40d"])
def test_a_text_that_can_be_stored_stays_as_it_is(text: str) -> None:
    assert text_of(ValueError(text)) == text


def test_characters_that_cannot_be_stored_are_escaped() -> None:
    assert text_of(ValueError("a\0b\udc80c")) == r"a\x00b\udc80c"
    assert repr_of("\0") == r"'\x00'"
    assert "\0" not in traceback_of(ValueError("a\0b\udc80c"))


@pytest.mark.parametrize("text", ["x" * 10**6, "ü" * 10**6, "\0" * 10**6, "\udc80" * 10**6])
@pytest.mark.parametrize("most", [10, 11, 12, 2000])
def test_a_long_text_is_cut(text: str, most: int) -> None:
    for cut in (text_of(text, most), traceback_of(ValueError(text), most)):
        assert most - 8 <= len(cut.encode()) <= most
    assert text_of(text, most).endswith("...")
    assert traceback_of(ValueError(text), most).startswith("...")


@pytest.mark.parametrize("error", [Mute(), Chatty()])
def test_a_text_that_fails_is_told(error: Exception) -> None:
    name = type(error).__name__
    assert text_of(error).startswith(f"<{name}; its __str__ raised ")
    assert line_of(error).startswith(f"{name}: <{name}; its __str__ raised ")
    assert name in traceback_of(error)
    assert repr_of(Mute()) == "<Mute; its __repr__ raised Own>"


def test_a_traceback_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> list[str]:
        raise Own

    monkeypatch.setattr("traceback.format_exception", fail)
    assert traceback_of(ValueError("why")) == (
        f"builtins.ValueError: why\n(its traceback failed: {__name__}.Own)\n"
    )


def test_an_interrupt_while_a_text_is_made_is_raised() -> None:
    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupted())


def test_one_line() -> None:
    assert line_of(ValueError("a\n  b")) == "ValueError: a b"
    assert line_of(ValueError()) == "ValueError"
    assert class_of(ValueError()) == "builtins.ValueError"
