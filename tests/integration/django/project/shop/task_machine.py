"""The invariants of tasks as a state machine: each message ends, and each result before it.

Tries are calls. A small model of nsqd delivers messages to the real handlers. The database fails at
any statement, and tasks do whatever they like. SHOP_EXAMPLES=5000 lets it run for longer.
"""

import asyncio
import json
import logging
import os
import sys
import time
import unittest
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest import mock

import django
from django.db import DataError, InterfaceError, OperationalError, connection, transaction
from django.test import TransactionTestCase, override_settings

if django.VERSION < (6,):
    raise unittest.SkipTest("Django has no tasks")

from django.tasks import task
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gnsqsync import Discard, Middleware, Reject, Requeue
from gnsqsync.django import schedule
from gnsqsync.django.inbox.models import InboxMarker
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.tasks.models import StoredResult
from gnsqsync.django.tasks.pruning import prune
from gnsqsync.django.tasks.worker import handlers_of_topic
from gnsqsync.errors import NotSent, OutcomeUnknown
from gnsqsync.message import Message
from gnsqsync.middleware import around_handler
from gnsqsync.reader.verdicts import Verdict, Verdicts
from shop.models import Order


class Deep(list):
    def __repr__(self):
        return "DEEP"


DEEP = Deep()
for _ in range(300):
    DEEP = Deep([DEEP])
LOST_CALLS = 3


class Killed(KeyboardInterrupt):
    """SIGKILL: no code of ours goes on."""


class Own(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


class Grave(Exception):
    pass


# Values that a call of the task returns, and exceptions that it raises.
GOOD = [None, 5, "Käse", {"a": [1.5, True]}]
BAD = ["a\0b", "a\udcff", float("nan"), DEEP, object(), b"\xff"]
VALUES = GOOD + BAD
ERRORS = [
    lambda: ValueError("a\0b\udcff"),
    lambda: Grave("x" * 100_000),
    asyncio.CancelledError,
    GeneratorExit,
    Own,
    lambda: SystemExit(3),
    lambda: OperationalError("the task's own"),
    lambda: DataError("the task's own"),
    Reject,
    Discard,
]
ASKS = [lambda: Requeue(5), lambda: Requeue(backoff=False)]


class Script:
    """The deed of the next call, and counts of calls by task."""

    do = staticmethod(lambda: None)
    calls = Counter()
    # Calls in which the row of the result was deleted. The calls before count no more.
    deletions = Counter()
    key = ""
    number = 0


@task(takes_context=True)
def work(context, value=None):
    key = Script.key = context.task_result.id
    Script.calls[key] += 1
    Script.number += 1
    Order.objects.create(number=Script.number, worker=key)
    return Script.do()


def raising(make):
    def do():
        raise make()

    return do


def deleting(do):
    """Return a deed in which prune(), or somebody, deletes the row before ``do``."""

    def deed():
        Script.deletions[Script.key] += 1
        StoredResult.objects.filter(pk=Script.key).delete()
        return do()

    return deed


class Odd(Middleware):
    """A middleware around the handler that fails when it is told to."""

    when = ""

    def handle(self, message, handler, proceed):
        if self.when == "before":
            raise ValueError("the middleware fails before")
        if self.when == "discards":
            raise Discard("not for us")
        result = proceed(message)
        if self.when == "after":
            raise ValueError("the middleware fails after")
        return result


class Answers:
    channel, nsqd_address, is_closed = "tasks", "127.0.0.1:4150", False
    topic = "tasks.default"


class Weather:
    """Lets a statement, counted from now, fail before it runs, or after: its answer is lost."""

    def __init__(self):
        self.left = 0
        self.kind = None
        self.when = ""

    def set(self, fault):
        self.left, self.kind, self.when = fault or (0, None, "")

    def __call__(self, execute, sql, params, many, context):
        if self.kind is None:
            return execute(sql, params, many, context)
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.when == "outage"):
            # Without the answer to a BEGIN nobody goes on with that connection.
            if self.when == "after" and sql != "BEGIN":
                execute(sql, params, many, context)
            raise self.kind("the weather")
        return execute(sql, params, many, context)


faults = st.tuples(
    st.integers(1, 8),
    st.sampled_from([OperationalError, InterfaceError, DataError, Killed]),
    st.sampled_from(["before", "after", "outage", "outage"]),
)
OUTAGE = (1, OperationalError, "outage")
CAUSES = ["killed", "unstored", "outage", "asks", "before"]
values = st.sampled_from(VALUES).map(lambda value: lambda: value)
errors = st.sampled_from(ERRORS).map(raising)
deeds = st.one_of(
    values,
    errors,
    st.sampled_from([*ASKS, Killed]).map(raising),
    st.one_of(values, errors).map(deleting),
)


@dataclass
class Mail:
    body: bytes
    id: str
    timestamp: int
    attempts: int = 0
    delay: float = 0.0
    is_finished: bool = False


class Tasks(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.mails = []
        self.dead = []
        self.hooked = []
        self.weather = Weather()
        self.ids = set()
        self.orphans = set()
        # Calls that count for nobody: they asked for another time, or their row was deleted.
        self.excused = Counter()
        self.grants = Counter()
        self.numbers = 0
        for model in (Order, InboxMarker, OutboxMessage, StoredResult):
            model.objects.all().delete()
        Script.calls = Counter()
        Script.deletions = Counter()

    @initialize(
        results=st.booleans() | st.just(True),
        once=st.booleans(),
        most=st.integers(1, 4),
        deliveries=st.integers(6, 9),
        letters=st.booleans(),
        hook=st.booleans(),
        lists=st.sampled_from(["", "retry_on", "reject_on", "discard_on"]),
    )
    def settings(self, results, once, most, deliveries, letters, hook, lists):
        reader = {"max_attempts": most, "max_deliveries": deliveries}
        if lists:
            reader[lists] = Grave
        if letters:
            reader["dead_letter_topic"] = "dead"
        if hook:
            reader["on_giving_up"] = lambda message, error: self.hooked.append(message)
        self.options = {"results": results, "once": once, "reader": reader}
        self.most, self.deliveries, self.letters = most, deliveries, letters
        entry = {"BACKEND": "gnsqsync.django.tasks.NsqBackend", "OPTIONS": self.options}
        self.overridden = override_settings(TASKS={"default": entry})
        self.overridden.enable()
        (self.handler,) = handlers_of_topic("tasks.default")
        options = self.handler.options
        self.verdicts = Verdicts(
            options.get("retry_on"),
            options.get("reject_on", ()),
            options.get("discard_on", ()),
            True,
        )
        self.odd = Odd()
        self.called = around_handler([self.odd], self.handler)
        self.outcome = "sent"
        self.patch = mock.patch("gnsqsync.django.tasks.backend.get_writer", lambda alias: self)
        self.patch.start()

    def teardown(self):
        if not hasattr(self, "handler"):
            return
        try:
            self.all_ends()
        finally:
            self.patch.stop()
            self.overridden.disable()

    # -- nsqd ----------------------------------------------------------------------------------

    _has_headers = False

    def publish(self, topic, body, headers=None):
        if self.outcome == "not sent":
            raise NotSent("no")
        if self.outcome != "lost":
            self.send(body.encode())
        if self.outcome != "sent":
            raise OutcomeUnknown("who knows")

    def send(self, body):
        self.numbers += 1
        try:
            id = json.loads(body)["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            id = ""
        id = id if str(id).isprintable() else ""
        self.mails.append(Mail(body, id, time.time_ns()))

    def deliver(self, mail, do, fault=None, odd="", is_lost=False):
        """Do what a Reader does with a message. ``is_lost``: nsqd never sees the answer."""
        counted = self.counted(mail)
        mail.attempts += 1
        message = Message(b"0" * 16, mail.body, mail.attempts, mail.timestamp, Answers())
        Script.do = staticmethod(do)
        self.odd.when = odd
        before = Script.calls[mail.id]
        with self.failing(fault):
            answer = self.answer(message)
        if (
            isinstance(answer, Requeue)
            and Script.calls[mail.id] > before
            and answer.__cause__ is None
        ):
            self.excused[mail.id] += 1
            before += 1
        self.check_tries(mail, counted, Script.calls[mail.id] - before)
        if answer == "killed" or is_lost:
            return
        if answer == "fin":
            mail.is_finished = True
            self.mails.remove(mail)
            self.check_end(mail, odd == "discards")
            return
        delay = answer.delay if isinstance(answer, Requeue) else None
        if delay is None:
            delay = min(mail.attempts * 90, 900)
            assert delay >= min(mail.delay, 900)
            mail.delay = delay

    def answer(self, message):
        try:
            if message.attempts > self.deliveries:
                return self.settle(message, None)
            try:
                self.called(message)
            except Killed:
                raise
            except BaseException as error:
                verdict = self.verdicts.of(error)
                if verdict is Verdict.REJECT:
                    return self.settle(message, error)
                if verdict is Verdict.DISCARD:
                    for observer in self.handler.options["observer"]:
                        try:
                            observer.discarded(message, error)
                        except Exception:
                            self.is_told = False
                    return "fin"
                return error
        except Killed:
            return "killed"
        return "fin"

    def settle(self, message, error):
        try:
            self.handler.options["on_giving_up"](message, error)
        except Killed:
            raise
        except BaseException as wrong:
            return ValueError(f"requeued after {wrong!r}")
        if self.letters:
            self.dead.append(message.body)
        return "fin"

    @contextmanager
    def failing(self, fault):
        self.weather.set(fault)
        self.is_told = True
        try:
            with connection.execute_wrapper(self.weather):
                yield
        finally:
            self.weather.set(None)
            if connection.in_atomic_block:
                raise AssertionError("a transaction is left open")

    # -- what must hold ------------------------------------------------------------------------

    def counted(self, mail):
        """Return the count of calls that the row of a task has; 0 if it begins anew."""
        row = StoredResult.objects.filter(pk=mail.id).first()
        return 0 if row is None or row.finished_at else len(row.worker_ids)

    def check_tries(self, mail, counted, calls):
        """Check that a task that waits for its next try counts calls, and not deliveries."""
        for row in StoredResult.objects.filter(pk=mail.id, status="READY"):
            assert len(row.worker_ids) == counted + calls, (row.worker_ids, counted, calls)

    def check_end(self, mail, is_of_middleware):
        """Check that the result has ended, as its message has."""
        rows = StoredResult.objects.filter(pk=mail.id)
        if not self.options["results"]:
            return
        if is_of_middleware and not self.is_told:
            # An Observer hears of it after the FIN, and the database was away: prune() is left.
            self.orphans.add(mail.id)
            return
        for row in rows:
            assert row.status in ("FAILED", "SUCCESSFUL"), (row.status, mail)
            assert row.finished_at is not None
            assert row.status == "SUCCESSFUL" or row.errors, row.errors
        if mail.id in self.ids and not is_of_middleware:
            assert rows, mail

    def all_ends(self):
        # The weather is fine now, and each task fails.
        left = sum(self.deliveries + 4 for _ in self.mails) + 5
        while self.mails:
            left -= 1
            assert left > 0, self.mails
            self.deliver(self.mails[0], raising(Grave))
        most = max(self.most, LOST_CALLS)
        for id, calls in Script.calls.items():
            times = self.grants[id] + Script.deletions[id] + 1
            allowed = times * (most if self.options["results"] else self.deliveries)
            assert calls - self.excused[id] <= allowed, (id, calls, self.excused[id], allowed)
        if self.options["results"]:
            waiting = StoredResult.objects.filter(finished_at=None)
            in_outbox = set(OutboxMessage.objects.values_list("key", flat=True))
            prune(timedelta(days=1))
            for row in waiting:
                assert row.pk in in_outbox | self.orphans, (row.pk, row.status)
        if self.options["once"]:
            done = Counter(Order.objects.values_list("worker", flat=True))
            marked = set(InboxMarker.objects.values_list("key", flat=True))
            assert set(done) == marked and set(done.values()) <= {1}, (done, marked)
            failed = StoredResult.objects.filter(pk__in=done).exclude(status="SUCCESSFUL")
            for row in failed:
                # The work of the task was stored, so its call has not failed. A row may begin anew.
                assert self.grants[row.pk] + Script.deletions[row.pk], (row.pk, row.errors)

    # -- what happens ----------------------------------------------------------------------------

    @rule(
        value=st.sampled_from(GOOD),
        outcome=st.sampled_from(["sent", "sent", "sent", "not sent", "lost", "unknown"]),
        fault=st.none() | faults,
        is_atomic=st.booleans(),
    )
    def enqueue(self, value, outcome, fault, is_atomic):
        self.outcome = outcome
        sent, rows = len(self.mails), self.rows()
        try:
            with self.failing(fault):
                with transaction.atomic() if is_atomic else nullcontext():
                    result = work.enqueue(value)
        except (Exception, Killed):
            # If the database fails, too, the row waits for prune().
            assert fault or self.rows() == rows, outcome
            self.orphans |= self.rows() - rows
        else:
            assert outcome == "sent" and len(self.mails) == sent + 1
            self.ids.add(result.id)

    @rule(value=st.sampled_from(BAD))
    def enqueue_what_cannot_be_stored(self, value):
        sent, rows = len(self.mails), self.rows()
        try:
            work.enqueue(value)
        except (ValueError, TypeError):
            assert len(self.mails) == sent and self.rows() == rows
        else:
            raise AssertionError(value)

    def rows(self):
        return set(StoredResult.objects.values_list("pk", flat=True))

    @rule(which=st.integers(0, 5), do=deeds)
    @precondition(lambda self: self.mails)
    def deliver_one(self, which, do):
        self.deliver(self.mails[which % len(self.mails)], do)

    @rule(
        which=st.integers(0, 5),
        do=values | deeds,
        fault=faults,
        odd=st.sampled_from(["", "", "before", "after", "discards"]),
        is_lost=st.sampled_from([False, False, True]),
    )
    @precondition(lambda self: self.mails)
    def deliver_in_the_weather(self, which, do, fault, odd, is_lost):
        self.deliver(self.mails[which % len(self.mails)], do, fault, odd, is_lost)

    @rule(
        which=st.integers(0, 5),
        do=values | deeds,
        odd=st.sampled_from(["before", "after", "discards"]),
        is_lost=st.booleans(),
    )
    @precondition(lambda self: self.mails)
    def deliver_oddly(self, which, do, odd, is_lost):
        self.deliver(self.mails[which % len(self.mails)], do, None, odd, is_lost)

    @rule(which=st.integers(0, 5), cause=st.sampled_from(CAUSES))
    @precondition(lambda self: self.mails)
    def the_same_until_the_end(self, which, cause):
        mail = self.mails[which % len(self.mails)]
        do = raising(Killed if cause == "killed" else ASKS[0])
        if cause == "unstored":
            # The database is away when the call ends.
            do = partial(self.weather.set, OUTAGE)
        while mail.attempts < self.deliveries and not mail.is_finished:
            odd = "before" if cause == "before" else ""
            self.deliver(mail, do, OUTAGE if cause == "outage" else None, odd)
        if not mail.is_finished:
            self.deliver(mail, do)
        assert mail.is_finished

    @rule(number=st.integers(0, 20))
    def odd_message(self, number):
        body = json.dumps(
            {
                "id": f"odd{self.numbers}",
                "task": "shop.task_machine.work",
                "backend": "default",
                "queue_name": "default",
                "args": [],
                "kwargs": {},
                "enqueued_at": "2026-01-01T00:00:00+00:00",
            }
        )
        old, new = CHANGES[number % len(CHANGES)]
        assert old in body
        self.send(body.replace(old, new).encode())

    @rule(which=st.integers(0, 5), is_row=st.booleans())
    @precondition(lambda self: self.mails)
    def row_is_deleted(self, which, is_row):
        """Delete the row, as prune() does long after; or let the message come twice."""
        mail = self.mails[which % len(self.mails)]
        if is_row:
            StoredResult.objects.filter(pk=mail.id).delete()
        else:
            self.send(mail.body)
        self.grants[mail.id] += 1

    @rule()
    @precondition(lambda self: self.dead)
    def letter_is_sent_back(self):
        body = self.dead.pop()
        self.send(body)
        self.grants[self.mails[-1].id] += 1

    @rule(days=st.integers(1, 9), end=st.sampled_from(["due", "cancelled", "deleted", "refused"]))
    def later(self, days, end):
        """A task for later, and what becomes of its row of the outbox."""
        due = datetime.now(UTC) + timedelta(days=days)
        result = work.using(run_after=due).enqueue()
        message = OutboxMessage.objects.get(key=result.id)
        if end == "cancelled":
            assert schedule.cancel(result.id) == 1
            for row in StoredResult.objects.filter(pk=result.id):
                assert row.status == "FAILED"
        elif end == "refused":
            OutboxMessage.objects.filter(key=result.id).update(failed_at=due, last_error="E_BAD")
        else:
            message.delete()
            if end == "due":
                self.ids.add(result.id)
                self.send(bytes(message.body))


# Messages that are no task, or one that nobody knows.
CHANGES = [
    ("[]", "[" * 100_000 + "]" * 100_000),
    ("[]", "[" * 200 + "]" * 200),
    ("[]", "[NaN]"),
    ("[]", "[-Infinity]"),
    ("[]", '["a\\u0000"]'),
    ("[]", '["\\udcff"]'),
    ("[]", "[" + "9" * 5000 + "]"),
    ("[]", "7"),
    ("{}", '{"a\\u0000": 1}'),
    ("odd", "x" * 100),
    ("odd", "a\\u0000"),
    ('"default"', "null"),
    ('"default"', '"other"'),
    ("2026", "0001"),
    ("2026-01-01T00:00:00+00:00", "9999-12-31T23:59:59-12:00"),
    ("+00:00", ""),
    ("shop.", "os."),
    ("shop.task_machine.work", "shop.task_machine.task"),
    ("shop.task_machine.work", "this.s"),
    ("shop.task_machine.work", "nothing"),
    ("{}", '{}, "more": 1'),
]


class TaskMachine(TransactionTestCase):
    def test_each_message_ends_and_its_result_before_it(self):
        logging.disable()
        self.addCleanup(logging.disable, logging.NOTSET)
        examples = int(os.environ.get("SHOP_EXAMPLES", "60"))
        run_state_machine_as_test(
            Tasks,
            settings=settings(
                max_examples=examples,
                stateful_step_count=25,
                deadline=None,
                database=None,
                derandomize="SHOP_EXAMPLES" not in os.environ,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            ),
        )
        self.assertFalse("this" in sys.modules)
