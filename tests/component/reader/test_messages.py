"""What becomes of single messages: attempts, giving up, refused answers, deadlines, races."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reject, Requeue, envelope
from gnsqsync.errors import MessageAnswered
from tests.component.conftest import Client, address, names
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.waiting import eventually
from tests.support.worlds import World

ANSWERS = ("FIN", "REQ", "TOUCH")


def deliver(*deliveries: tuple[bytes, int], **changes: Any) -> list[scripted.Step]:
    """A script that sends these bodies with their attempts, and then serves on."""
    steps = [automatic(until="RDY", **changes)]
    steps += [scripted.message(body, attempts=attempts) for body, attempts in deliveries]
    return [*steps, automatic()]


def answers(nsqd: ScriptedNsqd) -> list[str]:
    """FIN, REQ and TOUCH so far, as lines without the id."""
    lines = []
    for command in list(nsqd.commands):
        if command.name in ANSWERS:
            lines.append(" ".join((command.name, *command.parameters[1:])))
    return lines


# -- attempts -------------------------------------------------------------------------------------


def fail(message: Message) -> None:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "given_up"),
    [
        (4, 5, False),
        (5, 5, True),
        (6, 5, True),
        (32766, 32767, False),
        (32768, 32767, True),
        (40000, 5, True),
        (65534, 65535, False),
        (65535, 65535, True),
        (65535, 0, False),
    ],
)
def test_attempts_are_unsigned_and_the_limit_is_exact(
    client: Client, world: World, attempts: int, max_attempts: int, given_up: bool
) -> None:
    with ScriptedNsqd(deliver((b"x", attempts))) as nsqd:
        reader = client.consume(
            fail, nsqd, max_attempts=max_attempts, on_giving_up="discard", requeue_delay=0
        )
        world.eventually(lambda: answers(nsqd) == (["FIN"] if given_up else ["REQ 0"]))
        assert reader.stats().gave_up == given_up


@pytest.mark.parametrize("attempts", [6, 40000, 65535])
def test_a_message_that_failed_in_no_handler_is_handled_at_any_attempt(
    client: Client, world: World, attempts: int
) -> None:
    """As after many restarts, each of which is a delivery."""
    given_up: list[Any] = []
    seen: list[int] = []
    with ScriptedNsqd(deliver((b"x", attempts))) as nsqd:
        reader = client.consume(
            lambda message: seen.append(message.attempts),
            nsqd,
            on_giving_up=lambda message, error: given_up.append(message),
            dead_letter_topic="dead",
        )
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        assert seen == [attempts]
        assert (given_up, reader.stats().gave_up, nsqd.received("PUB")) == ([], 0, [])


def test_not_now_is_no_failure_and_never_given_up(client: Client, world: World) -> None:
    def not_now(message: Message) -> None:
        raise Requeue(3, backoff=False)

    with ScriptedNsqd(deliver((b"x", 60))) as nsqd:
        reader = client.consume(not_now, nsqd, on_giving_up="discard")
        world.eventually(lambda: answers(nsqd) == ["REQ 3000"])
        assert reader.stats().gave_up == 0


def test_a_message_is_handled_max_attempts_times(client: Client, world: World) -> None:
    seen: list[int] = []

    def fail(message: Message) -> None:
        seen.append(message.attempts)
        raise Requeue(0)

    def again(connection: scripted.Connection, command: Command) -> None:
        connection.message(b"x", attempts=len(seen) + 1)

    script = [automatic(until="RDY"), scripted.message(b"x"), automatic(hooks={"REQ": again})]
    with ScriptedNsqd(script) as nsqd:
        client.consume(fail, nsqd, max_attempts=3, on_giving_up="discard", max_backoff_duration=0)
        world.eventually(lambda: answers(nsqd) == ["REQ 0", "REQ 0", "FIN"])
        assert seen == [1, 2, 3]


class Levels(Observer):
    def __init__(self) -> None:
        self.levels: list[int] = []
        self.failed = 0

    def backoff(self, level: int, seconds: float) -> None:
        self.levels.append(level)

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        self.failed += failed


@pytest.mark.parametrize("why", ["kept", "too many deliveries"])
def test_outcomes_without_a_handler_change_no_backoff(
    client: Client, world: World, why: str
) -> None:
    """Outside a backoff it starts none, in one it is neither success nor failure."""
    observer = Levels()
    tests = iter([(b"poison", 9), (b"poison", 9), (b"bad", 1)])
    options: dict[str, Any] = {"max_attempts": 5}
    if why != "kept":
        options.update(max_deliveries=8, on_giving_up="discard")

    def on_rdy(connection: scripted.Connection, command: Command) -> None:
        # Each test of the backoff gets the next message.
        if command.parameters == ("1",) and observer.levels:
            body, attempts = next(tests, (b"good", 1))
            connection.message(body, attempts=attempts)

    script = [
        automatic(until="RDY"),
        scripted.message(b"poison", attempts=9),
        scripted.message(b"bad"),
        automatic(hooks={"RDY": on_rdy}),
    ]
    with ScriptedNsqd(script) as nsqd:
        client.consume(
            fail,
            nsqd,
            # RDY 2 for the two that come at first, so that RDY 1 is always a test.
            max_in_flight=2,
            latency="throughput",
            backoff_multiplier=0.02,
            backoff="every_failure",
            observer=observer,
            requeue_delay=0,
            **options,
        )
        world.eventually(lambda: len(observer.levels) >= 4)
        # bad, then two poisons that change nothing, then bad again.
        assert observer.levels[:4] == [1, 1, 1, 2]
        settled = [answer for answer in answers(nsqd) if answer != "REQ 0"]
        assert settled[:3] == ["REQ 900000" if why == "kept" else "FIN"] * 3


def test_a_failure_that_is_the_last_one_slows_down_as_any_other(
    client: Client, world: World
) -> None:
    """With what the handler needs away, the queue must not run into the dead letters at speed."""
    observer = Levels()
    with ScriptedNsqd(deliver((b"x", 5)), [automatic()]) as nsqd:
        client.consume(
            fail, nsqd, observer=observer, dead_letter_topic="dead", backoff="every_failure"
        )
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        world.eventually(lambda: observer.levels == [1])


# -- giving up ------------------------------------------------------------------------------------


def given_up(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if "gave up" in r.msg or "waits in nsqd" in r.msg]


def test_a_message_with_nowhere_to_go_waits_in_nsqd(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One ERROR for each message, and what to do; the next failures of it are warnings."""
    observer = Levels()
    deliveries = [(b"a", 5), (b"b", 9), (b"a", 6), (b"asked", 5)]

    def handler(message: Message) -> None:
        raise Requeue(7) if message.body == b"asked" else RuntimeError("no")

    script = [automatic(until="RDY")]
    for number, (body, attempts) in enumerate(deliveries):
        id = b"%016x" % (number % 2 if number < 3 else number)
        script += [scripted.message(body, attempts=attempts, id=id), automatic(until="REQ")]
    with ScriptedNsqd([*script, automatic()]) as nsqd:
        reader = client.consume(
            handler, nsqd, observer=observer, max_requeue_delay=600, requeue_delay=1
        )
        world.eventually(lambda: answers(nsqd) == ["REQ 600000"] * 4)
        where = address(nsqd)
        stats = reader.stats()
        assert (stats.gave_up, stats.finished, stats.requeued) == (0, 0, 4)
        # Failed they have, which metrics show.
        assert (observer.levels, observer.failed) == ([], 4)
    start, *rest = given_up(caplog)
    assert start.levelname == "WARNING"
    assert start.getMessage() == (
        "t/ch: a message that fails on attempt 5 (max_attempts) or later is not finished: it waits"
        " in nsqd and comes again every 600 s; set dead_letter_topic or on_giving_up"
    )
    assert [r.levelname for r in rest] == ["ERROR", "ERROR", "WARNING", "ERROR"]
    name = f"{__name__}.{handler.__qualname__}"
    assert rest[0].getMessage() == (
        f"t/ch, handler {name}: message {0:016x} failed on attempt 5 (max_attempts=5); it waits in"
        " nsqd and comes again in 600 s; set dead_letter_topic or on_giving_up"
    )
    assert rest[0].exc_info is not None
    assert str(rest[0].exc_info[1]) == "no"
    assert (
        vars(rest[0]).items()
        >= {
            "topic": "t",
            "channel": "ch",
            "nsqd": where,
            "attempts": 5,
            "message_id": f"{0:016x}",
        }.items()
    )
    # Each failure is one line, not two.
    assert not [r for r in caplog.records if "handler failed" in r.msg]


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"dead_letter_topic": "dead"}, {"on_giving_up": "discard"}],
    ids=str,
)
def test_no_warning_at_the_start_where_nothing_would_wait(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    with ScriptedNsqd() as nsqd:
        client.consume(print, nsqd, **options)
        world.eventually(lambda: nsqd.received("RDY"))
    assert given_up(caplog) == []


def test_the_number_of_remembered_messages_is_bounded(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.reader.dead_letters._MOST_TOLD", 3)
    with ScriptedNsqd(deliver(*[(b"x", 5)] * 5)) as nsqd:
        reader = client.consume(fail, nsqd)
        world.eventually(lambda: len(answers(nsqd)) == 5)
        assert len(reader._running()._dead_letters._told) == 3


def test_discard_finishes_by_that_word(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedNsqd(deliver((b"x", 5))) as nsqd:
        reader = client.consume(fail, nsqd, on_giving_up="discard")
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        assert reader.stats().gave_up == 1
        world.eventually(lambda: given_up(caplog))
    (line,) = given_up(caplog)
    assert line.levelname == "ERROR"
    assert line.getMessage().endswith(" after 5 attempts; it is discarded")
    assert line.exc_info is not None
    assert str(line.exc_info[1]) == "no"
    assert not [r for r in caplog.records if "handler failed" in r.msg]


def test_hook_and_observer_get_the_message_and_what_was_raised(
    client: Client, world: World
) -> None:
    told: list[tuple[str, bytes, BaseException | None]] = []
    errors: list[BaseException] = []

    class Watch(Observer):
        def gave_up(self, message: Message, error: BaseException | None) -> None:
            told.append(("observer", message.body, error))

    def handler(message: Message) -> None:
        errors.append(ValueError("no such order"))
        raise errors[0]

    with ScriptedNsqd(deliver((b"x", 5))) as nsqd:
        client.consume(
            handler,
            nsqd,
            on_giving_up=lambda message, error: told.append(("hook", message.body, error)),
            observer=Watch(),
        )
        world.eventually(lambda: len(told) == 2)
        assert told == [("hook", b"x", errors[0]), ("observer", b"x", errors[0])]


@pytest.mark.parametrize("attempts", [5, 6])
def test_max_deliveries_gives_up_before_the_handler(
    client: Client, world: World, attempts: int
) -> None:
    """For a body that ends the process before any handler can fail."""
    seen: list[bytes] = []
    told: list[tuple[bytes, BaseException | None]] = []
    with ScriptedNsqd(deliver((b"x", attempts)), [automatic()]) as nsqd:
        reader = client.consume(
            lambda message: seen.append(message.body),
            nsqd,
            max_deliveries=5,
            on_giving_up=lambda message, error: told.append((message.body, error)),
            dead_letter_topic="dead",
        )
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        too_often = attempts > 5
        assert seen == ([] if too_often else [b"x"])
        assert told == ([(b"x", None)] if too_often else [])
        assert [c.body for c in nsqd.received("PUB")] == ([b"x"] if too_often else [])
        assert reader.stats().gave_up == too_often


def test_an_on_giving_up_that_raises_is_a_requeue(client: Client, world: World) -> None:
    def hook(message: Message, error: BaseException | None) -> None:
        raise RuntimeError("the archive is away")

    with ScriptedNsqd(deliver((b"x", 6))) as nsqd:
        reader = client.consume(fail, nsqd, on_giving_up=hook, requeue_delay=1.5)
        # attempts * requeue_delay, as for any handler that fails.
        world.eventually(lambda: answers(nsqd) == ["REQ 9000"])
        assert reader.stats().gave_up == 0


@pytest.mark.parametrize(("attempts", "expected"), [(6, 6000), (59, 59_000), (300, 60_000)])
def test_a_message_that_cannot_be_given_up_comes_again_ever_later(
    client: Client, world: World, attempts: int, expected: int
) -> None:
    """A hook that fails delays the message even with no requeue_delay: a Reject has no backoff."""

    def hook(message: Message, error: BaseException | None) -> None:
        raise asyncio.CancelledError

    def handler(message: Message) -> None:
        raise Reject("no")

    with ScriptedNsqd(deliver((b"x", attempts))) as nsqd:
        client.consume(handler, nsqd, on_giving_up=hook, requeue_delay=0)
        world.eventually(lambda: answers(nsqd) == [f"REQ {expected}"])


@pytest.mark.parametrize("headers", [{"two\nlines": "x"}, {"n" * 300: "x"}, {"key": "k" * 300}])
def test_an_envelope_that_others_made_dies_as_it_came(
    client: Client, world: World, headers: dict[str, str]
) -> None:
    """A dead letter keeps an envelope that this package would not write."""
    body = envelope.restore(headers, b"x")
    with ScriptedNsqd(deliver((body, 6)), [automatic()]) as nsqd:
        client.consume(fail, nsqd, dead_letter_topic="dead", headers=True)
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        assert [letter.body for letter in nsqd.received("PUB")] == [body]


def test_a_dead_letter_is_published_before_the_fin(client: Client, world: World) -> None:
    go_on = threading.Event()

    def hold(connection: scripted.Connection, command: Command) -> None:
        scripted.wait_until(go_on)(connection)
        connection.response()

    with ScriptedNsqd(deliver((b"x", 6)), [automatic(hooks={"PUB": hold})]) as nsqd:
        client.consume(fail, nsqd, dead_letter_topic="dead")
        world.eventually(lambda: nsqd.received("PUB"))
        world.sleep(0.15)  # longer than the sweep
        assert answers(nsqd) == []
        go_on.set()
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        letter = nsqd.received("PUB")[0]
        assert (letter.parameters, letter.body) == (("dead",), b"x")


def test_a_dead_letter_as_large_as_its_nsqd_allows(client: Client, world: World) -> None:
    body = b"x" * (1 << 20) + b"y"
    with ScriptedNsqd(deliver((body, 6)), [automatic()]) as nsqd:
        client.consume(fail, nsqd, dead_letter_topic="dead")
        world.eventually(lambda: answers(nsqd) == ["FIN"])
        assert [letter.body for letter in nsqd.received("PUB")] == [body]


def test_a_dead_letter_that_fails_is_a_requeue(client: Client, world: World) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_PUB_FAILED PUB failed disk full")
        scripted.close()(connection)

    with ScriptedNsqd(deliver((b"x", 6)), [automatic(hooks={"PUB": refuse})]) as nsqd:
        reader = client.consume(
            fail, nsqd, dead_letter_topic="dead", requeue_delay=100, max_requeue_delay=7
        )
        world.eventually(lambda: answers(nsqd) == ["REQ 7000"])
        assert reader.stats().gave_up == 0


def test_a_message_that_is_lost_while_it_is_given_up_is_not_counted(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    begun = threading.Event()

    def hook(message: Message, error: BaseException | None) -> None:
        begun.set()
        world.eventually(go_on.is_set)

    script = [*deliver((b"x", 5))[:-1], scripted.wait_until(begun), scripted.reset()]
    with ScriptedNsqd(script, [automatic()]) as nsqd:
        reader = client.consume(fail, nsqd, on_giving_up=hook)
        world.eventually(lambda: len(nsqd.received("SUB")) == 2)
        go_on.set()
        world.eventually(lambda: "comes again" in caplog.text)
        assert reader.stats().gave_up == 0
        assert answers(nsqd) == []


# -- requeue delays -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "options", "expected"),
    [
        (1, {}, 90_000),
        (3, {}, 270_000),
        (10, {}, 900_000),
        (4, {"requeue_delay": 0.5}, 2000),
        (4, {"requeue_delay": 0.5, "max_requeue_delay": 1.25}, 1250),
        (2, {"requeue_delay": 0}, 0),
    ],
)
def test_the_delay_of_a_failed_message(
    client: Client, world: World, attempts: int, options: dict[str, float], expected: int
) -> None:
    with ScriptedNsqd(deliver((b"x", attempts))) as nsqd:
        client.consume(fail, nsqd, max_attempts=0, **options)
        world.eventually(lambda: answers(nsqd) == [f"REQ {expected}"])


def test_a_delay_of_its_own_is_sent_as_it_is(client: Client, world: World) -> None:
    """Not capped by max_requeue_delay; nsqd lowers what is above its own limit."""

    def fail(message: Message) -> None:
        raise Requeue(7200.5, backoff=False)

    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        client.consume(fail, nsqd)
        world.eventually(lambda: answers(nsqd) == ["REQ 7200500"])


# -- answers that nsqd refuses --------------------------------------------------------------------


class Refusals(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        self.seen.append((message_id, code))


def refuse(connection: scripted.Connection, command: Command) -> None:
    name, id = command.name, command.parameters[0]
    connection.error(f"E_{name}_FAILED {name} {id} failed ID not in flight")


@pytest.mark.parametrize("answer", ["finish", "requeue", "touch"])
def test_a_refused_answer_of_a_detached_message(client: Client, world: World, answer: str) -> None:
    kept: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    observer = Refusals()
    script = [
        automatic(until="RDY"),
        scripted.message(b"x"),
        automatic(hooks=dict.fromkeys(ANSWERS, refuse)),
    ]
    with ScriptedNsqd(script) as nsqd:
        reader = client.consume(keep, nsqd, observer=observer)
        world.eventually(lambda: kept)
        message = kept[0]
        assert getattr(message, answer)() is True
        world.eventually(lambda: message.timed_out)
        assert not message.is_alive
        world.eventually(lambda: observer.seen)
        code = {"finish": "E_FIN_FAILED", "requeue": "E_REQ_FAILED", "touch": "E_TOUCH_FAILED"}
        assert observer.seen == [(message.id, code[answer])]
        assert reader.stats().answers_failed == 1
        assert reader.stats().in_flight == 0
        # Not fatal: the connection lives.
        assert len(nsqd.connections) == 1
        assert len(reader.stats().connections) == 1
        if answer == "touch":
            assert message.finish() is False
            assert answers(nsqd) == ["TOUCH"]


def test_a_refused_fin_of_a_handler_is_told_by_the_hook(client: Client, world: World) -> None:
    seen: list[str] = []
    observer = Refusals()
    script = [
        automatic(until="RDY"),
        scripted.message(b"x"),
        automatic(hooks={"FIN": refuse}),
    ]
    with ScriptedNsqd(script) as nsqd:
        client.consume(lambda m: seen.append(m.id), nsqd, observer=observer)
        world.eventually(lambda: observer.seen)
        assert observer.seen == [(seen[0], "E_FIN_FAILED")]


def test_memory_of_answered_messages_goes_with_them(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        message.detach()
        message.finish()

    go_on = threading.Event()
    script = deliver(*[(b"x", 1)] * 50)[:-1]
    # The threads hold on to their last chunk until the next one comes.
    script += [automatic(until="FIN"), scripted.wait_until(go_on), scripted.message(b"last")]
    with ScriptedNsqd(script) as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=50)
        world.eventually(lambda: reader.stats().finished == 50)
        go_on.set()
        world.eventually(lambda: reader.stats().finished == 51)
        connection = reader._running().subscription.connections()[0]
        world.eventually(lambda: len(connection._answered_late) <= 1)


def test_texts_that_are_no_refusal_of_ours(client: Client, world: World) -> None:
    observer = Refusals()
    script = [
        automatic(until="RDY"),
        scripted.error("E_FIN_FAILED"),
        scripted.error("E_TOUCH_FAILED TOUCH"),
        scripted.error("E_REQ_FAILED REQ \u00e9\u00e9 failed"),
        automatic(),
    ]
    with ScriptedNsqd(script) as nsqd:
        reader = client.consume(lambda m: None, nsqd, observer=observer)
        world.eventually(lambda: len(observer.seen) == 3)
        assert [id for id, _ in observer.seen] == ["", "", "\u00e9\u00e9"]
        assert len(reader.stats().connections) == 1


# -- deadlines ------------------------------------------------------------------------------------


def test_deadlines(client: Client, world: World) -> None:
    kept: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    before = time.monotonic()
    script = deliver((b"x", 1), msg_timeout=10_000, max_msg_timeout=12_000)
    with ScriptedNsqd(script) as nsqd:
        client.consume(keep, nsqd)
        world.eventually(lambda: kept)
        message = kept[0]
        after = time.monotonic()
        assert before + 10 <= message.deadline <= after + 10
        assert before + 12 <= message.hard_deadline <= after + 12
        first, hard = message.deadline, message.hard_deadline
        world.sleep(0.05)
        assert message.touch()
        assert message.deadline >= first + 0.05
        assert message.hard_deadline == hard
        # As if it had been touched late: a touch does not help past the hard limit.
        message._touched_at += 5
        assert message.deadline == hard
        message.finish()


# -- double answers and races ---------------------------------------------------------------------


def test_exactly_one_of_many_answers_wins(client: Client, world: World) -> None:
    kept: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    count, threads = 30, 6
    with ScriptedNsqd(deliver(*[(b"x", 1)] * count)) as nsqd:
        client.consume(keep, nsqd, max_in_flight=count)
        world.eventually(lambda: len(kept) == count)
        wins: list[str] = []
        late: list[str] = []

        def answer(who: int) -> None:
            for message in kept:
                try:
                    if who % 2:
                        assert message.finish()
                    else:
                        assert message.requeue(0, backoff=False)
                except MessageAnswered:
                    late.append(message.id)
                else:
                    wins.append(message.id)
                world.sleep(0)

        tasks = [world.spawn(answer, who) for who in range(threads)]
        for task in tasks:
            task.join()
        assert sorted(wins) == sorted(message.id for message in kept)
        assert len(late) == count * (threads - 1)
        world.eventually(lambda: len(answers(nsqd)) == count)
        ids = [c.parameters[0] for c in nsqd.commands if c.name in ANSWERS]
        assert sorted(ids) == sorted(wins)


def test_messages_that_waited_at_the_loss_of_a_connection_reach_no_handler(
    client: Client, world: World
) -> None:
    handled: list[tuple[bytes, int]] = []
    seen: list[Message] = []
    go_on = threading.Event()

    def handler(message: Message) -> None:
        handled.append((message.body, message.attempts))
        seen.append(message)
        if message.body == b"first" and message.attempts == 1:
            world.eventually(go_on.is_set)

    script = [
        automatic(until="RDY"),
        scripted.message(b"first"),
        scripted.message(b"second"),
        scripted.call(lambda connection: world_has(seen)),
        scripted.reset(),
    ]

    def world_has(what: list[Any]) -> None:
        eventually(lambda: what, 10)

    with ScriptedNsqd(script, deliver((b"first", 2), (b"second", 2))) as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=2)
        world.eventually(lambda: seen)
        world.eventually(lambda: not seen[0].is_alive)
        assert seen[0].finish() is False
        assert seen[0].touch() is False
        assert not seen[0].timed_out
        go_on.set()
        world.eventually(lambda: len(answers(nsqd)) == 2)
        assert handled == [(b"first", 1), (b"first", 2), (b"second", 2)]
        # The answer of the first run was for nobody.
        assert len(nsqd.connections[0].commands) == len(
            [c for c in nsqd.connections[0].commands if c.name not in ANSWERS]
        )
        stats = reader.stats()
        assert (stats.received, stats.finished, stats.in_flight) == (4, 2, 0)
        assert names(nsqd).count("SUB t ch") == 2


def test_a_refused_touch_says_nothing_of_the_next_delivery(client: Client, world: World) -> None:
    """nsqd refuses the TOUCH of what waits to be delivered again, and that comes right behind."""
    got: list[Message] = []

    def handler(message: Message) -> None:
        got.append(message)
        if message.attempts == 1:
            message.detach()

    def refuse(connection: scripted.Connection, command: Command) -> None:
        (id,) = command.parameters
        refusal = f"E_TOUCH_FAILED TOUCH {id} failed ID not in flight".encode()
        again = scripted.message_frame(b"x", id=id.encode(), attempts=2)
        connection.send(scripted.frame(scripted.ERROR, refusal) + again)

    steps = [automatic(until="RDY"), scripted.message(b"x"), automatic(hooks={"TOUCH": refuse})]
    with ScriptedNsqd(steps) as nsqd:
        client.consume(handler, nsqd)
        world.eventually(lambda: got)
        assert got[0].touch()
        world.eventually(lambda: answers(nsqd)[-1:] == ["FIN"])
        assert got[0].timed_out and not got[1].timed_out
