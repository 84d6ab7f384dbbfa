"""The signals that end a program: which ones, what repeats mean, and that one module says so."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Iterator

import pytest

from gnsqsync.process.signals import Requests, ending, handled
from tests.support.house import sources

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@pytest.mark.parametrize(
    ("numbers", "levels"),
    [
        ([TERM, INT, TERM, INT], [1, 2, 3, 4]),
        # A closed terminal: the kernel sends one, the shell another.
        ([HUP, HUP], [1, 0]),
        # A service manager with SendSIGHUP=yes.
        ([TERM, HUP], [1, 0]),
        # The session ends behind its terminal: nobody has pressed twice.
        ([HUP, TERM], [1, 0]),
        ([HUP, TERM, INT, HUP, TERM], [1, 0, 2, 0, 3]),
    ],
)
def test_only_who_asks_twice_presses(numbers: list[int], levels: list[int]) -> None:
    requests = Requests()
    assert [requests.add(number) for number in numbers] == levels


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(HUP)
    yield
    signal.signal(HUP, before)


def test_a_hangup_ends_a_program_unless_it_is_ignored(hangup: None) -> None:
    signal.signal(HUP, signal.SIG_DFL)
    assert ending() == (TERM, INT, HUP)
    signal.signal(HUP, signal.SIG_IGN)
    assert ending() == (TERM, INT)


def test_handlers_are_put_back(hangup: None) -> None:
    signal.signal(HUP, signal.SIG_IGN)
    seen: list[int] = []
    with handled([HUP], lambda number, frame: seen.append(number)):
        os.kill(os.getpid(), HUP)
    assert seen == [HUP]
    assert signal.getsignal(HUP) is signal.SIG_IGN


def test_a_second_hangup_may_come_while_the_program_ends(hangup: None) -> None:
    signal.signal(HUP, signal.SIG_DFL)
    with handled([HUP], lambda number, frame: None):
        pass
    assert signal.getsignal(HUP) is signal.SIG_DFL
    with handled([HUP], lambda number, frame: None):
        os.kill(os.getpid(), HUP)
    os.kill(os.getpid(), HUP)


def test_a_program_below_a_supervisor_ends_unhurt_behind_its_last_signals(hangup: None) -> None:
    before = signal.getsignal(TERM), signal.getsignal(signal.SIGQUIT)
    signal.signal(HUP, signal.SIG_DFL)
    try:
        with handled([TERM, HUP, signal.SIGQUIT], lambda number, frame: None, is_last=True):
            pass
        assert signal.getsignal(TERM) is signal.getsignal(HUP) is signal.SIG_IGN
        # The signal that forces keeps its force.
        assert signal.getsignal(signal.SIGQUIT) is before[1]
    finally:
        signal.signal(TERM, before[0])


def lists_of_signals(source: str) -> Iterator[int]:
    """The lines that list SIGTERM and SIGINT, as who decides what ends a program does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            names = {ast.unparse(element) for element in node.elts}
            if {"signal.SIGTERM", "signal.SIGINT"} <= names:
                yield node.lineno


def test_one_module_says_which_signals_end_a_program() -> None:
    # Only sources with both words are parsed, as parsing all of them takes a second.
    named = {
        name: text for name, text in sources().items() if "SIGTERM" in text and "SIGINT" in text
    }
    found = {name for name, text in named.items() if [*lists_of_signals(text)]}
    assert found == {"gnsqsync.process.signals"}
