"""How middlewares stand around a handler and a publish."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from gnsqsync import Message, Middleware, Publication, Reader, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.middleware import (
    around_handler,
    around_publish,
    check_middleware,
    fails_after,
    overriding,
)


class Noting(Middleware):
    """Notes what passes."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        self.notes.append(f"{self.name} before")
        try:
            return proceed(message)
        finally:
            self.notes.append(f"{self.name} after")


class Idle(Middleware):
    """Overrides nothing."""


def test_the_first_one_is_outermost_and_sees_what_the_handler_raises() -> None:
    notes: list[str] = []

    def handler(message: Message) -> None:
        notes.append("handler")
        raise ValueError

    call = around_handler([Noting("a", notes), Idle(), Noting("b", notes)], handler)
    message: Any = object()
    with pytest.raises(ValueError):
        call(message)
    assert notes == ["a before", "b before", "handler", "b after", "a after"]


def test_without_middlewares_nothing_stands_around() -> None:
    message: Any = object()
    seen: list[object] = []
    around_handler([Idle()], seen.append)(message)
    assert seen == [message]
    assert overriding([Idle(), Noting("a", [])], "publish") == ()
    assert around_publish([], print) is print


def test_a_publish_may_be_changed_on_its_way() -> None:
    class Stamp(Middleware):
        def publish(self, publication: Publication, proceed: Any) -> Future[None] | None:
            assert publication.headers is not None
            publication.headers["by"] = "stamp"
            result: Future[None] | None = proceed(publication)
            return result

    sent: list[Publication] = []
    publication = Publication("t", [b"x"], {}, None)
    around_publish(overriding([Stamp()], "publish"), lambda one: sent.append(one))(publication)
    assert sent[0].headers == {"by": "stamp"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Noting, "it must be a list of gnsqsync.Middleware objects; give Noting()"),
        ([None], "it must be a list of gnsqsync.Middleware objects"),
        ("package.Middleware", "it must be a list"),
    ],
)
def test_objects_that_are_no_middleware(given: Any, says: str) -> None:
    for make in (
        lambda: check_middleware(given),
        lambda: Writer(middleware=given),
        lambda: Reader("t", "c", print, nsqd_tcp_addresses="a", middleware=given),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert says in str(caught.value)


def test_a_reader_without_a_handler_has_nothing_to_stand_around() -> None:
    Reader("t", "c", nsqd_tcp_addresses="a", middleware=[Idle()])
    with pytest.raises(ConfigError, match="this Reader has none"):
        Reader("t", "c", nsqd_tcp_addresses="a", middleware=[Noting("a", [])])


def test_a_middleware_that_may_fail_after_the_handler_is_named() -> None:
    class Careful(Noting):
        fails_after_handler = False

    class Careless(Careful):
        def handle(self, message: Message, handler: Any, proceed: Any) -> object:
            return proceed(message)

    class Renamed(Careful):
        """Has the handle() that the promise is about."""

    class Broken(Renamed):
        fails_after_handler = True

    assert fails_after([Idle(), Careful("", []), Renamed("", [])]) == ""
    named = fails_after([Noting("", []), Careless("", []), Broken("", []), Noting("", [])])
    names = [name.rpartition(".")[2] for name in named.split(", ")]
    assert names == ["Noting", "Broken", "Careless"]
