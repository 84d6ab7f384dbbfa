"""Context variables: each message has its own, on threads and greenlets, whatever runs for it."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.threading import ThreadingIntegration

from gnsqsync import Message, Middleware
from gnsqsync.message import Fate
from gnsqsync.reader.contexts import context_maker
from tests.component.reader.test_workers import Bench
from tests.support.worlds import World

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    bench = Bench(world)
    yield bench
    bench.workers.stop()
    assert bench.workers.join(bench.workers._runtime.now() + 10) == 0


class SetsAround(Middleware):
    """A middleware that resets nothing, as many do."""

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        tenant.set(f"{tenant.get()}, middleware")
        return proceed(message)


@pytest.mark.parametrize("middleware", [(), (SetsAround(),)], ids=["bare", "middleware"])
def test_a_variable_ends_with_its_message(bench: Bench, middleware: tuple[Middleware, ...]) -> None:
    seen: list[str] = []

    def handler(message: Message) -> None:
        seen.append(tenant.get())
        tenant.set(message.body.decode())
        decimal.getcontext().prec = 5
        if message.body == b"fails":
            raise ValueError

    bench.start(handler, middleware=middleware)
    # A chunk, and chunks after it.
    bench.queued._pace = 1e-6
    bench.put(b"first", b"fails", b"last")
    bench.idle()
    bench.put(b"another")
    bench.idle()
    assert seen == ["nobody, middleware" if middleware else "nobody"] * 4


def test_greenlets_and_threads_side_by_side_keep_theirs(bench: Bench, world: World) -> None:
    begun: list[bytes] = []
    seen: list[tuple[str, str]] = []

    def handler(message: Message) -> None:
        mine = message.body.decode()
        tenant.set(mine)
        begun.append(message.body)
        # Each of them is in the middle of its message now.
        world.eventually(lambda: len(begun) == 4)
        seen.append((mine, tenant.get()))

    bench.start(handler, concurrency=4)
    bench.put(b"a", b"b", b"c", b"d")
    bench.idle()
    assert sorted(seen) == [(name, name) for name in "abcd"]


def test_variables_of_hooks_end_with_the_message_or_stay_with_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def gives_up(message: Message) -> Fate:
        seen.append(f"hook {tenant.get()}")
        tenant.set("hook")
        return Fate.FINISHED

    def batch(*args: object) -> None:
        tenant.set("batch")

    def handler(message: Message) -> None:
        seen.append(f"handler {tenant.get()}")
        tenant.set("handler")
        if message.attempts == 2:
            raise ValueError

    monkeypatch.setattr(bench, "batch", batch)
    bench.fate_of = gives_up
    bench.start(handler, max_attempts=2, max_deliveries=9)
    for attempts in (1, 2, 10, 1):
        bench.put(b"x", attempts=attempts)
        bench.idle()
    # The hook of a message whose handler ran has what that has set, and no other message's.
    assert [line for line in seen if line.startswith("handler")] == ["handler nobody"] * 3
    assert [line for line in seen if line.startswith("hook")] == ["hook handler", "hook nobody"]


def test_a_variable_set_before_the_worker_begins_is_in_each_message() -> None:
    def as_a_worker() -> tuple[str, str]:
        tenant.set("start")
        new_context = context_maker()
        tenant.set("later")
        first, second = new_context(), new_context()
        first.run(tenant.set, "first")
        return first.run(tenant.get), second.run(tenant.get)

    assert Context().run(as_a_worker) == ("first", "start")


@pytest.fixture
def sentry() -> Iterator[None]:
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        enable_backpressure_handling=False,
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[ThreadingIntegration()],
    )
    yield
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.usefixtures("sentry")
def test_tags_of_sentry_end_with_their_message_and_those_of_the_start_stay(
    bench: Bench, world: World
) -> None:
    """Sentry hands its scope to each thread, and changes it in place; greenlets get none."""
    seen: list[dict[str, str]] = []

    def handler(message: Message) -> None:
        sentry_sdk.set_tag(message.body.decode(), "x")
        sentry_sdk.get_current_scope().set_tag("current", message.body.decode())
        of_current = dict(sentry_sdk.get_current_scope()._tags)
        seen.append({**of_current, **sentry_sdk.get_isolation_scope()._tags})

    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("service", "shop")
        bench.start(handler)
    bench.put(b"first")
    bench.put(b"second")
    bench.idle()
    of_start = {"service": "shop"} if world.runtime == "threads" else {}
    assert seen == [{**of_start, "current": name, name: "x"} for name in ("first", "second")]
