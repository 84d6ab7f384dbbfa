"""What Sentry gets of handlers and publishes, by the real SDK with a transport in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from gnsqsync import Discard, Message, Reject, Requeue
from gnsqsync.contrib.sentry import Sentry
from tests.integration.conftest import Client, address
from tests.support.servers import Server
from tests.support.worlds import World


class Kept(Transport):
    def __init__(self) -> None:
        super().__init__({"dsn": None})
        self.items: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [item.payload.json for item in envelope.items]

    def events(self) -> list[Any]:
        return [item for item in self.items if item.get("type") != "transaction"]

    def transactions(self) -> list[Any]:
        return [item for item in self.items if item.get("type") == "transaction"]


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=kept,
        traces_sample_rate=1.0,
        # It begins a thread that nothing ends.
        enable_backpressure_handling=False,
        default_integrations=False,
        auto_enabling_integrations=False,
    )
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def test_a_message_that_fails_is_told_once_and_given_up_as_an_error(
    client: Client, nsqd: Server, world: World, topic: str, kept: Kept
) -> None:
    def handler(message: Message) -> None:
        raise ValueError("a bug")

    sentry = Sentry()
    client.writer(nsqd).publish(topic, b"12345")
    reader = client.consume(
        topic,
        handler,
        nsqd,
        middleware=[sentry],
        observer=sentry,
        requeue_delay=0,
        max_backoff_duration=0,
        max_attempts=3,
        on_giving_up="discard",
    )
    world.eventually(lambda: reader.stats().gave_up == 1)
    world.eventually(lambda: len(kept.events()) == 2)
    first, last = kept.events()
    assert (first["level"], last["level"]) == ("warning", "error")
    for event, attempts in ((first, 1), (last, 3)):
        assert event["exception"]["values"][0]["value"] == "a bug"
        assert event["tags"] == {"nsq.topic": topic, "nsq.channel": "ch"}
        details = event["contexts"]["nsq"]
        assert (details["nsqd"], details["attempts"]) == (address(nsqd), attempts)
        assert len(details["message_id"]) == 16
    assert first["contexts"]["nsq"]["handler"].endswith("handler")
    assert len(kept.transactions()) == 3


@pytest.mark.parametrize("raised", [Requeue(delay=60), Discard("not wanted")])
def test_words_of_a_handler_are_no_events(
    client: Client, nsqd: Server, world: World, topic: str, kept: Kept, raised: Exception
) -> None:
    def handler(message: Message) -> None:
        raise raised

    client.writer(nsqd).publish(topic, b"x")
    client.consume(topic, handler, nsqd, middleware=[Sentry()])
    world.eventually(lambda: kept.transactions())
    assert kept.events() == []


def test_a_publish_and_its_handler_are_one_trace(
    client: Client, nsqd: Server, world: World, topic: str, kept: Kept
) -> None:
    sentry = Sentry()
    around: dict[str, Any] = {"headers": True, "middleware": [sentry]}
    writer = client.writer(nsqd, **around)
    with sentry_sdk.start_transaction(name="request", op="http.server"):
        writer.publish(topic, b"12345")
        future = writer.publish_async(topic, b"6")
        world.eventually(future.done)
    client.consume(topic, lambda message: None, nsqd, **around)
    world.eventually(lambda: len(kept.transactions()) == 3)
    request, *processes = kept.transactions()
    for process in processes:
        of_request, of_process = request["contexts"]["trace"], process["contexts"]["trace"]
        assert of_process["trace_id"] == of_request["trace_id"]
        assert of_process["op"] == "queue.process"
        data = of_process["data"]
        assert data["messaging.destination.name"] == topic
        assert data["messaging.message.retry.count"] == 0
        assert data["messaging.message.receive.latency"] >= 0
        assert len(data["messaging.message.id"]) == 16
    published = [span for span in request["spans"] if span["op"] == "queue.publish"]
    assert sorted(span["data"]["messaging.message.body.size"] for span in published) == [1, 5]
    assert all(span["status"] == "ok" for span in published)


def test_without_sentry_set_up_nothing_changes(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    sentry = Sentry()
    around: dict[str, Any] = {"headers": True, "middleware": [sentry]}
    client.writer(nsqd, **around).publish(topic, b"x")
    reader = client.consume(topic, lambda message: None, nsqd, observer=sentry, **around)
    world.eventually(lambda: reader.stats().finished == 1)


def test_an_sdk_that_raises_changes_nothing(
    client: Client,
    nsqd: Server,
    world: World,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("broken")

    for name in ("start_span", "start_transaction", "capture_exception", "continue_trace"):
        monkeypatch.setattr(sentry_sdk, name, broken)
    sentry = Sentry()
    around: dict[str, Any] = {"headers": True, "middleware": [sentry]}
    writer = client.writer(nsqd, **around)
    for _ in range(3):
        writer.publish(topic, b"x")
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise ValueError

    reader = client.consume(
        topic, handler, nsqd, requeue_delay=0, backoff=False, observer=sentry, **around
    )
    world.eventually(lambda: reader.stats().finished == 3)
    assert sorted(attempts) == [1, 1, 1, 2, 2, 2]
    told = [record for record in caplog.records if "Sentry failed" in record.getMessage()]
    assert len(told) == 1


def test_few_failures_are_remembered() -> None:
    sentry = Sentry()
    for number in range(10_005):
        sentry._told[("n", str(number), ValueError)] = None
    message: Any = Message(b"0" * 16, b"", 1, 0, None)  # type: ignore[arg-type]
    message._responder = type("R", (), {"nsqd_address": "n", "channel": "c"})()
    sentry._failed(message, ValueError())
    assert len(sentry._told) == 10_000


def test_rejections_are_issues_of_their_handlers(
    client: Client, nsqd: Server, world: World, topic: str, kept: Kept
) -> None:
    """The place is the same, as where a body cannot be read."""

    def refuse(message: Message) -> None:
        raise Reject("no")

    def mails(message: Message) -> None:
        refuse(message)

    def bills(message: Message) -> None:
        refuse(message)

    def fails(message: Message) -> None:
        raise ValueError("a bug")

    sentry = Sentry()
    readers = []
    for handler in (mails, bills, fails):
        reader = client.consume(
            topic,
            handler,
            nsqd,
            channel=handler.__name__,
            middleware=[sentry],
            observer=sentry,
            max_attempts=1,
            on_giving_up="discard",
        )
        readers.append(reader)
    world.eventually(lambda: all(reader.stats().connections for reader in readers))
    client.writer(nsqd).publish(topic, b"x")
    world.eventually(lambda: len(kept.events()) == 6)
    found = {
        (event["level"], *(event.get("fingerprint") or ()))
        for event in kept.events()
        if event["exception"]["values"][-1]["type"] == "Reject"
    }
    name = f"{__name__}.test_rejections_are_issues_of_their_handlers.<locals>"
    assert found == {
        (level, "{{ default }}", f"{name}.{handler}")
        for level in ("warning", "error")
        for handler in ("mails", "bills")
    }
    others = [e for e in kept.events() if e["exception"]["values"][-1]["type"] == "ValueError"]
    assert len(others) == 2
    assert not any(event.get("fingerprint") for event in others)
