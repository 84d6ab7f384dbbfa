"""Values that a Reader or a Writer is given, checked one by one."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.options import ConnectionOptions, check_handler


def plain(message: object) -> None: ...


async def coroutine(message: object) -> None: ...


async def async_generator(message: object) -> AsyncIterator[None]:
    yield


def generator(message: object) -> Iterator[None]:
    yield


@functools.wraps(coroutine)
def wrapper(message: object) -> None: ...


class Plain:
    def __call__(self, message: object) -> None: ...

    async def coroutine(self, message: object) -> None: ...


class Coroutine:
    async def __call__(self, message: object) -> None: ...


class Made:
    def __init__(self, message: object) -> None: ...


class Injecting:
    """A decorator that is written in another way than as a function."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, message: object) -> None: ...


def takes_two(message: object, database: object) -> None: ...


@functools.wraps(takes_two)
def injects(message: object) -> None: ...


class Generator:
    def __call__(self, message: object) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    # A class is called as a function is, and a wrapper is what it does itself.
    [
        plain,
        wrapper,
        functools.partial(plain),
        Plain(),
        Plain().__call__,
        Made,
        print,
        injects,
        Injecting(takes_two),
        functools.partial(takes_two, database=None),
        lambda *everything, **more: None,
        lambda message, verbose=False, *, log=None: None,
        mock.Mock(),
        # Written in C: of some it is known what they take, of others not.
        [].append,
        max,
        dict,
    ],
)
def test_a_handler_that_runs_when_it_is_called(function: Any) -> None:
    check_handler("handler", function)


@pytest.mark.parametrize(
    "function",
    [
        lambda message, error: None,
        lambda message, error=None: None,
        lambda *what: None,
        functools.partial(lambda where, message, error: None, "here"),
        {}.setdefault,
        print,
        # Written in C, and tells nothing of what it takes.
        max,
    ],
)
def test_a_hook_that_takes_two_arguments(function: Any) -> None:
    check_handler("hook", function, "the message", "the exception")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: None, "test_options.<lambda>(): too many positional arguments"),
        (lambda a, b, c: None, "<lambda>(a, b, c): missing a required argument: 'c'"),
        (plain, "test_options.plain(message): too many positional arguments"),
        ([].append, "hook is list.append(object, /): too many positional arguments"),
    ],
)
def test_a_hook_that_takes_another_number_of_arguments(function: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_handler("hook", function, "the message", "the exception")
    told = str(caught.value)
    assert text in told
    assert told.endswith("; it must be a callable that takes the message and the exception")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: None, "<lambda>(): too many positional arguments"),
        (lambda *, message: None, "<lambda>(*, message): too many positional arguments"),
        (lambda message, *, database: None, "missing a required"),
        (takes_two, "missing a required argument: 'database'"),
        (functools.partial(takes_two, 1, 2), "too many positional arguments"),
        (Plain, "test_options.Plain(): too many positional arguments"),
        (Plain.__call__, "missing a required argument: 'message'"),
        ([].clear, "list.clear(): too many positional arguments"),
        (functools.wraps(plain)(lambda: None), "too many positional arguments"),
    ],
)
def test_a_handler_that_cannot_take_one_message(function: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_handler("handler", function)
    told = str(caught.value)
    assert told.startswith("handler is ") and text in told
    assert told.endswith("; it must be a callable that takes a message")


@pytest.mark.parametrize("function", [None, 3, "os:remove"])
def test_a_handler_that_cannot_be_called(function: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_handler("handler", function)
    assert str(caught.value) == (
        f"handler is {function!r}; it must be a callable that takes a message"
    )


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (coroutine, "a coroutine function"),
        (Plain().coroutine, "a coroutine function"),
        (functools.partial(Plain().coroutine), "a coroutine function"),
        (functools.partial(functools.partial(coroutine), None), "a coroutine function"),
        (Coroutine(), "a coroutine function"),
        (functools.partial(Coroutine()), "a coroutine function"),
        (async_generator, "an async generator function"),
        (generator, "a generator function"),
        (Generator(), "a generator function"),
    ],
)
def test_a_handler_whose_code_would_never_run(function: Any, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_handler("jobs.handle", function)
    assert str(caught.value) == (
        f"jobs.handle is {kind}: its code would never run; give a plain function, which may run a"
        " loop of its own or detach() the message"
    )


def test_a_secret_that_is_no_text_is_not_shown() -> None:
    for make in (
        lambda: ConnectionOptions(auth_secret="caf\udce9"),
        lambda: ConnectionOptions(auth_secret=lambda: "caf\udce9").secret(),
    ):
        with pytest.raises(ConfigError, match="auth_secret has a lone surrogate at 3; ") as caught:
            make()
        assert "caf" not in str(caught.value)
