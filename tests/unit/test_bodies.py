"""Handlers that get their body as an object, by msgspec or pydantic."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pydantic
import pytest

from gnsqsync import Message, Reject, Requeue, typed
from gnsqsync.errors import ConfigError
from gnsqsync.options import handler_name


@dataclasses.dataclass
class Order:
    number: int
    names: list[str]


class Struct(msgspec.Struct):
    number: int
    names: list[str]


class Model(pydantic.BaseModel):
    number: int
    names: list[str]


@pydantic.dataclasses.dataclass
class ModelClass:
    number: int
    names: list[str]


KINDS: list[Any] = [Order, Struct, Model, ModelClass]


def message(body: bytes) -> Any:
    return Message(b"0" * 16, body, 1, 0, None)  # type: ignore[arg-type]


def handle(message: Message, body: Any) -> Any:
    return body


@pytest.mark.parametrize("kind", KINDS)
def test_the_body_comes_as_an_object(kind: Any) -> None:
    body = typed(kind)(handle)(message(b'{"number": 7, "names": ["a"]}'))
    assert type(body) is kind
    assert body == kind(number=7, names=["a"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no json", None),
        (b"\xff", None),
        (b'{"number": "many", "names": []}', "number"),
        (b'{"number": 7}', "names"),
        (b"[" * 100_000, None),
        (b'{"number": 7, "names": ["\xff"]}', None),
        (b'{"number": 7, "names": ["\\ud800"]}', None),
        (b'{"number": ' + b"9" * 10_000 + b', "names": []}', None),
        (b'{"number": NaN, "names": []}', None),
    ],
)
def test_a_body_that_is_no_object_is_rejected(kind: Any, body: bytes, says: str | None) -> None:
    with pytest.raises(Reject) as caught:
        typed(kind)(handle)(message(body))
    reason = caught.value.reason
    assert reason.startswith(f"the body is no {kind.__name__}: ")
    assert says is None or says in reason
    assert "\n" not in reason and len(reason) < 400


class Unhappy(pydantic.BaseModel):
    """A model with a validator that raises what the body names."""

    error: str

    @pydantic.field_validator("error")
    @classmethod
    def check(cls, name: str) -> str:
        raise {"key": KeyError("a\0b"), "database": OSError("away"), "later": Requeue(5)}[name]


@pytest.mark.parametrize(
    ("error", "becomes"), [("key", Reject), ("database", OSError), ("later", Requeue)]
)
def test_a_validator_may_ask_for_another_attempt(error: str, becomes: type[Exception]) -> None:
    with pytest.raises(becomes):
        typed(Unhappy)(handle)(message(json.dumps({"error": error}).encode()))


def test_a_list_of_what_is_wrong_is_cut() -> None:
    with pytest.raises(Reject) as caught:
        typed(Model)(handle)(message(json.dumps({"number": "x", "names": [1] * 50}).encode()))
    assert caught.value.reason.endswith("(and 50 more)")


def test_other_types_of_the_library() -> None:
    assert typed(list[int])(handle)(message(b"[1, 2]")) == [1, 2]  # type: ignore[arg-type]


def test_without_msgspec_pydantic_takes_a_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "msgspec", None)
    body = b'{"number": 7, "names": []}'
    assert typed(Order)(handle)(message(body)) == Order(7, [])
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)
    with pytest.raises(ConfigError, match=r"pip install \"gnsqsync\[msgspec\]\""):
        typed(Order)


@pytest.mark.parametrize("kind", [object(), lambda: None])
def test_types_that_no_library_takes(kind: Any) -> None:
    with pytest.raises(ConfigError, match="body is"):
        typed(kind)


def test_the_function_takes_two() -> None:
    with pytest.raises(ConfigError, match="it must be a callable that takes a message and its bo"):
        typed(Order)(lambda message: None)  # type: ignore[arg-type,misc]


def test_wrapped_handler_is_still_that_of_the_user() -> None:
    class Handler:
        ended = 0

        def __call__(self, message: Message, order: Order) -> None: ...

        def worker_ended(self) -> None:
            self.ended += 1

    assert handler_name(typed(Order)(handle)).endswith("test_bodies.handle")
    own = Handler()
    wrapped: Any = typed(Order)(own)
    wrapped.worker_ended()
    assert own.ended == 1
    assert "Handler" in handler_name(wrapped)
