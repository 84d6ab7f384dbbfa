"""gnsqsync.django.tasks; run by manage.py test. Django has tasks since version 6."""

import json
import sys
import time
import unittest
from asyncio import CancelledError
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType
from unittest import mock

import django
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, IntegrityError, OperationalError, connection, transaction
from django.test import TestCase, override_settings
from django.utils.functional import SimpleLazyObject

from gnsqsync import Requeue
from gnsqsync.django import outbox, schedule
from gnsqsync.django.databases import insert_unless_there
from gnsqsync.django.test import captured_messages
from gnsqsync.errors import ConfigError, NotSent
from gnsqsync.message import Discard, Message, Reject
from shop.models import Order

if django.VERSION < (6,):
    raise unittest.SkipTest("Django has no tasks")

from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started

from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.tasks import CallLost, TaskCancelled, TaskGivenUp, known, prune
from gnsqsync.django.tasks.models import StoredResult
from gnsqsync.django.tasks.results import ResultTable
from gnsqsync.django.tasks.worker import handlers_of_topic
from shop import tasks

READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED
SUCCESSFUL, RUNNING = TaskResultStatus.SUCCESSFUL, TaskResultStatus.RUNNING


def backend(**options):
    entry = {
        "BACKEND": "gnsqsync.django.tasks.NsqBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": options,
    }
    return override_settings(TASKS={"default": entry})


eager = override_settings(GNSQSYNC={"default": {"BACKEND": "eager"}})


class Answers:
    topic, channel, nsqd_address, is_closed = "tasks.default", "tasks", "127.0.0.1:4150", False


class Own(BaseException):
    pass


def message_of(body, attempts, timestamp=0):
    return Message(b"0" * 16, body, attempts, timestamp, Answers())


def deliver(body, attempts=1, timestamp=0):
    """What a worker does with it."""
    (handler,) = handlers_of_topic("tasks.default")
    handler(message_of(body, attempts, timestamp))


@contextmanager
def signals():
    seen = []
    receivers = []
    for name, signal in (
        ("enqueued", task_enqueued),
        ("started", task_started),
        ("finished", task_finished),
    ):

        def receive(sender, task_result, name=name, **kwargs):
            seen.append((name, task_result.status))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield seen
    for signal, receive in receivers:
        signal.disconnect(receive)


@eager
class Eager(TestCase):
    """As on the immediate backend: the same project, other settings."""

    def test_task_is_called_at_once(self):
        with signals() as seen:
            result = tasks.pack.enqueue(7, worker="me")
        self.assertEqual(Order.objects.get().number, 7)
        self.assertEqual((result.status, result.return_value), (SUCCESSFUL, {"packed": 7}))
        self.assertEqual((result.attempts, result.errors), (1, []))
        self.assertEqual(
            seen, [("enqueued", READY), ("started", RUNNING), ("finished", SUCCESSFUL)]
        )
        self.assertEqual(tasks.pack.get_result(result.id), result)

    def test_queues_and_coroutines(self):
        self.assertEqual(tasks.greet.enqueue("Ann").return_value, "Hello, Ann")
        self.assertEqual(tasks.think.enqueue(1).return_value, 2)

    def test_task_that_fails_has_its_errors(self):
        for task, kind in (
            (tasks.fail, ValueError),
            (tasks.leave, SystemExit),
            (tasks.not_for_json, TypeError),
        ):
            with self.assertLogs("django.tasks", "ERROR"):
                result = task.enqueue(*(("no",) if task is tasks.fail else ()))
            self.assertEqual(result.status, FAILED)
            self.assertIs(result.errors[0].exception_class, kind)
            self.assertIn("Traceback", result.errors[0].traceback)

    def test_another_try_comes_at_once(self):
        with backend(reader={"max_attempts": 3, "retry_on": [ValueError]}):
            result = tasks.attempts.enqueue()
        self.assertEqual((result.status, result.return_value), (SUCCESSFUL, 3))
        with backend(reader={"max_attempts": 2, "retry_on": [ValueError]}):
            result = tasks.attempts.enqueue()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (FAILED, 2, 2))

    def test_rejected_task_is_a_dead_letter(self):
        reader = {"dead_letter_topic": "tasks-dead", "headers": True}
        entry = {"BACKEND": "eager", "OPTIONS": {"headers": True}}
        for error in (Reject("no such order"), KeyError("wrong")):
            with (
                override_settings(GNSQSYNC={"default": entry}),
                backend(reader=reader),
                captured_messages(eager=True) as messages,
                mock.patch.object(tasks, "ERROR", error),
            ):
                result = tasks.raises.enqueue()
            self.assertEqual((result.status, result.attempts), (FAILED, 1))
            letter = messages[-1]
            self.assertEqual(letter.topic, "tasks-dead")
            self.assertEqual(json.loads(letter.body)["id"], result.id)
            self.assertEqual(letter.headers["deadtopic"], "tasks.default")

    def test_discarded_task_is_no_error_of_the_caller(self):
        with backend(reader={"discard_on": [KeyError]}):
            result = tasks.raises.enqueue()
        self.assertEqual(result.status, FAILED)

    def test_without_results(self):
        with backend(results=False):
            result = tasks.pack.enqueue(8)
            self.assertEqual(result.status, READY)
            with self.assertRaises(NotImplementedError):
                tasks.pack.get_result(result.id)
        self.assertEqual(Order.objects.get().number, 8)
        self.assertFalse(StoredResult.objects.exists())

    def test_any_queue(self):
        entry = {"BACKEND": "gnsqsync.django.tasks.NsqBackend", "QUEUES": []}
        with override_settings(TASKS={"default": entry}):
            result = tasks.greet.using(queue_name="letters").enqueue("Bob")
            self.assertEqual(result.return_value, "Hello, Bob")

    def test_another_backend_has_topics_of_its_own(self):
        entry = {"BACKEND": "gnsqsync.django.tasks.NsqBackend", "QUEUES": ["default", "mail"]}
        with override_settings(TASKS={"default": entry, "second": entry}):
            self.assertEqual(task_backends["second"].topic("mail"), "tasks.second.mail")
            second = tasks.greet.using(backend="second")
            self.assertEqual(second.enqueue("Bob").return_value, "Hello, Bob")


class Enqueue(TestCase):
    def test_task_is_published_and_known(self):
        with captured_messages() as messages, signals() as seen:
            result = tasks.pack.enqueue(7)
        (message,) = messages
        self.assertEqual(message.topic, "tasks.default")
        found = message.json()
        self.assertEqual(found["task"], "shop.tasks.pack")
        self.assertEqual((found["args"], found["kwargs"]), ([7], {}))
        self.assertEqual(result.status, READY)
        self.assertEqual(seen, [("enqueued", READY)])
        self.assertEqual(tasks.pack.get_result(result.id), result)
        deliver(message.body)
        result.refresh()
        self.assertEqual((result.status, result.return_value), (SUCCESSFUL, {"packed": 7}))
        # Once more: it has ended.
        deliver(message.body, 2)
        self.assertEqual(Order.objects.count(), 1)

    def test_the_worker_was_first(self):
        """The transaction that enqueued it is not over, or was rolled back."""
        with captured_messages() as messages:
            with self.assertRaises(KeyError), transaction.atomic():
                result = tasks.pack.enqueue(7)
                raise KeyError
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.pack.get_result(result.id)
        deliver(messages[0].body)
        result.refresh()
        self.assertEqual(result.status, SUCCESSFUL)

    def test_nothing_is_left_of_what_was_not_published(self):
        writer = mock.Mock(_has_headers=False)
        writer.publish.side_effect = NotSent("no")
        with mock.patch("gnsqsync.django.tasks.backend.get_writer", return_value=writer):
            with self.assertRaises(NotSent):
                tasks.pack.enqueue(7)
        self.assertFalse(StoredResult.objects.exists())

    def test_no_row_is_cut_or_left_out_in_silence(self):
        with captured_messages():
            result = tasks.pack.enqueue(7)
        rows = StoredResult.objects.filter(pk=result.id)
        twin = rows.get()
        twin.status = "twin"
        insert_unless_there(twin, "default")
        self.assertEqual(rows.get().status, READY)
        refused = [{"args": [float("nan")]}]
        if connection.vendor != "sqlite":
            # SQLite stores texts of any length.
            refused.append({"queue_name": "q" * 101})
        for values in refused:
            row = rows.get()
            row.id = "other"
            for name, value in values.items():
                setattr(row, name, value)
            with self.assertRaises((DataError, IntegrityError)), transaction.atomic():
                insert_unless_there(row, "default")
        self.assertEqual(StoredResult.objects.count(), 1)

    def test_wrong_arguments(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            tasks.pack.enqueue(datetime.now())

    def test_headers_have_the_key(self):
        entry = {"BACKEND": "memory", "OPTIONS": {"headers": True}}
        with override_settings(GNSQSYNC={"default": entry}), captured_messages() as messages:
            result = tasks.pack.enqueue(7)
        self.assertEqual(messages[0].headers["key"], result.id)

    def test_on_commit(self):
        with captured_messages() as messages, self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: tasks.pack.enqueue(7))
            self.assertEqual(messages, [])
        self.assertEqual(len(messages), 1)

    def test_the_outbox(self):
        with backend(outbox=True), captured_messages() as messages:
            with self.assertRaises(KeyError), transaction.atomic():
                tasks.pack.enqueue(6)
                raise KeyError
            result = tasks.pack.enqueue(7)
        self.assertEqual(messages, [])
        self.assertEqual(outbox.lag().waiting, 1)
        self.assertEqual(StoredResult.objects.get().id, result.id)

    def test_run_after(self):
        later = datetime.now(UTC) + timedelta(days=90)
        with captured_messages() as messages:
            result = tasks.pack.using(run_after=later).enqueue(7)
            self.assertEqual(messages, [])
            self.assertEqual(tasks.pack.using(run_after=later).get_result(result.id), result)
            self.assertEqual(outbox.lag().scheduled, 1)
            self.assertEqual(schedule.cancel(result.id), 1)
            # Due.
            tasks.pack.using(run_after=datetime.now(UTC) - timedelta(1)).enqueue(7)
            self.assertEqual(len(messages), 1)
        self.assertTrue(task_backends["default"].supports_defer)
        with self.modify_settings(INSTALLED_APPS={"remove": "gnsqsync.django.outbox"}):
            self.assertFalse(task_backends["default"].supports_defer)
            with self.assertRaises(InvalidTask):
                tasks.pack.using(run_after=later)

    def test_priority_is_refused(self):
        with self.assertRaises(InvalidTask):
            tasks.pack.using(priority=1)


class Worker(TestCase):
    def enqueue(self, task, *args):
        with captured_messages() as messages:
            result = task.enqueue(*args)
        return result, messages[0].body

    def test_attempts(self):
        with backend(reader={"max_attempts": 3}):
            result, body = self.enqueue(tasks.attempts)
            for attempt in (1, 2):
                with self.assertRaisesMessage(ValueError, "not yet"):
                    deliver(body, attempt)
                result.refresh()
                self.assertEqual((result.status, len(result.errors)), (READY, attempt))
            deliver(body, 3)
            result.refresh()
        self.assertEqual((result.status, result.return_value), (SUCCESSFUL, 3))

    def test_attempts_without_results(self):
        with backend(reader={"max_attempts": 3}, results=False):
            _, body = self.enqueue(tasks.attempts)
            with self.assertRaisesMessage(ValueError, "not yet"):
                deliver(body, 2)
            deliver(body, 3)

    def test_a_dead_letter(self):
        with backend(reader={"dead_letter_topic": "dead"}):
            result, body = self.enqueue(tasks.fail, "no")
            with self.assertRaisesMessage(Reject, "has failed: ValueError: no"):
                deliver(body)
        result.refresh()
        self.assertEqual(result.status, FAILED)

    def test_a_task_that_asks_for_another_time(self):
        result, body = self.enqueue(tasks.pack, 7)
        with mock.patch.object(Order.objects, "create", side_effect=Requeue(5)):
            with self.assertRaises(Requeue):
                deliver(body, 9)
        result.refresh()
        self.assertEqual((result.status, result.errors), (READY, []))

    def test_unknown_task_waits(self):
        result, body = self.enqueue(tasks.pack, 7)
        unknown = body.replace(b"shop.tasks.pack", b"shop.tasks.gone")
        for attempts in (1, 2):
            with self.assertLogs("gnsqsync.django", "WARNING") as logged:
                with self.assertRaises(Requeue):
                    deliver(unknown.replace(result.id.encode(), b"5"), attempts)
            self.assertIn("does not know the task shop.tasks.gone", logged.output[0])
            self.assertIn("['modules']; add 'shop.tasks' there", logged.output[0])
        for wrong in (b"{}", b"[]", b"\xff", b'{"id": 5}', body.replace(b"[7]", b"7")):
            with self.assertRaisesMessage(Reject, "the message is no task"):
                deliver(wrong)
        with self.assertRaisesMessage(Reject, "name another topic"):
            deliver(body.replace(b'"backend":"default"', b'"backend":"other"'))

    def test_once(self):
        """Its marker, its work and its result are one transaction."""
        with backend(once=True, results=False):
            result, body = self.enqueue(tasks.pack, 7)
            deliver(body)
            deliver(body, 2)
        self.assertEqual(Order.objects.count(), 1)
        with backend(once=True):
            result, body = self.enqueue(tasks.forget)
            deliver(body)
            result.refresh()
            self.assertTrue(result.return_value)
            failing, body = self.enqueue(tasks.fail, "no")
            deliver(body)
            failing.refresh()
            self.assertEqual(failing.status, FAILED)

    def test_a_result_that_cannot_be_stored_is_no_failure_of_the_task(self):
        result, body = self.enqueue(tasks.greet.using(queue_name="default"), "Ann")
        write = "gnsqsync.django.tasks.results.ResultTable.write"
        with mock.patch(write, side_effect=[None, OperationalError("the database is away")]):
            with self.assertRaises(Requeue):
                deliver(body)
        result.refresh()
        self.assertEqual(result.status, READY)


class Ends(TestCase):
    """Each task ends, and its result says how."""

    enqueue = Worker.enqueue

    def test_arguments_that_cannot_be_stored_are_refused_before_the_publish(self):
        loop = []
        loop.append(loop)
        for value, says in (
            ("a\0b", "args has a NUL character"),
            ({"a\0": 1}, "args has a NUL character"),
            ("a\udcff", "half of a surrogate pair"),
            (float("nan"), "args has nan"),
            (-float("inf"), "args has -inf"),
            (10**4500, "more than 4,300 digits"),
            (loop, "nests too deeply"),
            (b"\xff", "Unsupported value"),
        ):
            for results in (True, False):
                with self.subTest(says=says), backend(results=results):
                    with captured_messages() as messages:
                        with self.assertRaisesMessage(ValueError, says):
                            tasks.pack.enqueue(value)
                    self.assertEqual((messages, StoredResult.objects.count()), ([], 0))
        with self.assertRaisesMessage(ValueError, "kwargs has nan"):
            tasks.pack.enqueue(1, worker=float("nan"))
        far = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
        with self.assertRaisesMessage(InvalidTask, "run_after is"):
            tasks.pack.using(run_after=far)

    def test_nothing_is_published_that_the_table_refuses(self):
        add = "gnsqsync.django.tasks.results.ResultTable.add"
        with captured_messages() as messages, mock.patch(add, side_effect=DataError("no")):
            with self.assertRaises(DataError):
                tasks.pack.enqueue(1)
        self.assertEqual(messages, [])

    def test_a_value_or_traceback_that_cannot_be_stored(self):
        for value in ("a\0", "\udcff", float("inf"), [[]] * 3 + [object()], 10**5000):
            result, body = self.enqueue(tasks.give)
            with mock.patch.object(tasks, "GIVEN", value):
                deliver(body)
            result.refresh()
            self.assertEqual(result.status, FAILED)
            self.assertIn("the return value", result.errors[0].traceback)
        result, body = self.enqueue(tasks.fail, "no")
        with mock.patch.object(tasks, "TEXT", "no such page: a\0b\udcff"):
            deliver(body)
        result.refresh()
        self.assertEqual(result.status, FAILED)
        self.assertIn("no such page: a\\x00b\\udcff", result.errors[0].traceback)

    def test_a_result_that_the_database_refuses(self):
        """The task has failed, and is not called for ever, such as for JSON that is too deep."""
        result, body = self.enqueue(tasks.pack, 7)
        write, answers = ResultTable._write, iter([None, DataError("no"), DataError("no"), None])

        def refusing(table, row):
            if (error := next(answers)) is not None:
                raise error
            write(table, row)

        with mock.patch.object(ResultTable, "_write", refusing):
            deliver(body)
        result.refresh()
        self.assertEqual((result.status, len(result.errors)), (FAILED, 1))
        self.assertIn("The database refused", result.errors[0].traceback)

    def test_whatever_a_task_raises_is_its_failure(self):
        for error in (CancelledError(), GeneratorExit(), SystemExit(1), Own()):
            result, body = self.enqueue(tasks.raises)
            with mock.patch.object(tasks, "ERROR", error):
                deliver(body)
            result.refresh()
            self.assertEqual(result.status, FAILED)
            self.assertIs(result.errors[0].exception_class, type(error))

    def test_tries_are_calls(self):
        """Four deliveries fail before the call, as in an outage of the database."""
        with backend(reader={"max_attempts": 3}):
            result, body = self.enqueue(tasks.attempts)
            find = "gnsqsync.django.tasks.results.ResultTable.find"
            for attempt in (1, 2, 3, 4):
                with mock.patch(find, side_effect=OperationalError), self.assertRaises(Requeue):
                    deliver(body, attempt)
            for attempt in (5, 6):
                with self.assertRaisesMessage(ValueError, "not yet"):
                    deliver(body, attempt)
            deliver(body, 7)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (SUCCESSFUL, 3))

    def test_rows_of_the_version_before(self):
        """In these, deliveries stood for calls."""
        result, body = self.enqueue(tasks.fail, "no")
        row = StoredResult.objects.filter(pk=result.id)
        row.update(status=RUNNING, worker_ids=["unknown"] * 4 + ["host:1"])
        with backend(reader={"max_attempts": 3}), self.assertRaises(ValueError):
            deliver(body, 6)
        with backend(reader={"max_attempts": 3}):
            deliver(body, 7)
        result.refresh()
        self.assertEqual(result.status, FAILED)

    def test_a_task_that_kills_its_workers(self):
        result, body = self.enqueue(tasks.raises)
        killed = mock.patch.object(tasks, "ERROR", KeyboardInterrupt())
        with killed, signals() as seen:
            for attempt in (1, 2, 3):
                with self.assertRaises(KeyboardInterrupt):
                    deliver(body, attempt)
            deliver(body, 4)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (FAILED, 3))
        kinds = [error.exception_class for error in result.errors]
        self.assertEqual(kinds, [CallLost] * 3 + [TaskGivenUp])
        self.assertEqual(seen[-1], ("finished", FAILED))

    def test_task_that_the_reader_gives_up(self):
        hooked = []
        reader = {"on_giving_up": lambda message, error: hooked.append(error)}
        with backend(reader=reader), signals() as seen:
            result, body = self.enqueue(tasks.pack, 7)
            (handler,) = handlers_of_topic("tasks.default")
            give_up = handler.options["on_giving_up"]
            end = "gnsqsync.django.tasks.ends.end"
            with mock.patch(end, side_effect=OperationalError), self.assertRaises(OperationalError):
                give_up(message_of(body, 1001), None)
            give_up(message_of(body, 1001), None)
            give_up(message_of(body, 1002), None)
            result.refresh()
        self.assertEqual(result.status, FAILED)
        self.assertIs(result.errors[0].exception_class, TaskGivenUp)
        self.assertIn("1001 times", result.errors[0].traceback)
        self.assertEqual((seen[-1], hooked), (("finished", FAILED), [None, None]))
        # A message that is no task is shown.
        with self.assertLogs("gnsqsync.django", "ERROR") as logged:
            with backend():
                (handler,) = handlers_of_topic("tasks.default")
                handler.options["on_giving_up"](message_of(b"\0no task", 1), Reject("no"))
        self.assertIn("no task", logged.output[0])

    def test_task_that_expires(self):
        with backend(reader={"max_age": 1.0, "on_expired": "discard"}):
            result, body = self.enqueue(tasks.pack, 7)
            (handler,) = handlers_of_topic("tasks.default")
            with self.assertRaises(Discard):
                handler.options["on_expired"](message_of(body, 1))
        result.refresh()
        self.assertEqual(result.status, FAILED)

    def test_lists_of_exceptions(self):
        """With tries left, too: nothing calls the task again."""
        for lists, raised in (
            ({"reject_on": [ValueError]}, None),
            ({"reject_on": [ValueError], "dead_letter_topic": "dead"}, Reject),
            ({"retry_on": [KeyError]}, None),
            ({"discard_on": [ValueError]}, ValueError),
        ):
            with self.subTest(lists=lists), backend(reader={"max_attempts": 5, **lists}):
                result, body = self.enqueue(tasks.fail, "no")
                with nullcontext() if raised is None else self.assertRaises(raised):
                    deliver(body)
                result.refresh()
                self.assertEqual(result.status, FAILED)

    def test_a_letter_that_is_sent_back(self):
        with backend(reader={"dead_letter_topic": "dead"}):
            result, body = self.enqueue(tasks.fail, "no")
            with self.assertRaises(Reject):
                deliver(body)
            # Once more, as its answer was lost; then by somebody who has mended the task.
            deliver(body, 2)
            with mock.patch.object(tasks, "TEXT", None):
                deliver(body, timestamp=time.time_ns())
        result.refresh()
        self.assertEqual(result.status, SUCCESSFUL)

    def test_cancelled_and_moved(self):
        later = datetime.now(UTC) + timedelta(days=90)
        with signals() as seen:
            result = tasks.pack.using(run_after=later).enqueue(7)
            body = bytes(OutboxMessage.objects.get().body)
            schedule.reschedule(result.id, later + timedelta(days=1))
            self.assertEqual(StoredResult.objects.get().run_after, later + timedelta(days=1))
            self.assertEqual(schedule.cancel(result.id), 1)
        result.refresh()
        self.assertEqual((result.status, seen[-1]), (FAILED, ("finished", FAILED)))
        self.assertIs(result.errors[0].exception_class, TaskCancelled)
        # The relay published the message at that moment.
        deliver(body)
        self.assertEqual(Order.objects.count(), 0)

    def test_prune_ends_what_nothing_else_ends(self):
        later = datetime.now(UTC) + timedelta(days=90)
        deleted, refused, waits = (tasks.pack.using(run_after=later).enqueue(n) for n in range(3))
        OutboxMessage.objects.filter(key=deleted.id).delete()
        OutboxMessage.objects.filter(key=refused.id).update(failed_at=later, last_error="E_BAD")
        with captured_messages():
            old, young = tasks.pack.enqueue(1), tasks.pack.enqueue(2)
        long_ago = datetime.now(UTC) - timedelta(days=31)
        StoredResult.objects.filter(pk=old.id).update(enqueued_at=long_ago)
        self.assertEqual(prune(timedelta(days=40)), 0)
        self.assertEqual(prune(timedelta(days=1)), 1)
        for result, status in (
            (deleted, FAILED),
            (refused, FAILED),
            (waits, READY),
            (young, READY),
        ):
            result.refresh()
            self.assertEqual(result.status, status)
        self.assertIn("E_BAD", refused.errors[0].traceback)

    def test_a_message_imports_no_module(self):
        _, body = self.enqueue(tasks.pack, 7)
        for path in (b"this.s", b"shop.tasks.Order", b"os.system"):
            with self.assertRaises(Requeue):
                deliver(body.replace(b"shop.tasks.pack", path))
        self.assertFalse("this" in sys.modules)
        with backend(modules=["no.such.module"]), self.assertRaises(Requeue):
            deliver(body.replace(b"shop.tasks.pack", b"a.b"))
        # Objects that only say that they are modules, as those of cffi, and that work when asked.
        lazy = SimpleLazyObject(lambda: 1 / 0)
        posing = type("Posing", (), {"__class__": ModuleType})()
        module = ModuleType("lazy")
        module.value = lazy
        with mock.patch.dict(sys.modules, {"lazy": module, "posing": posing}):
            self.assertIn("shop.tasks.pack", known.paths())
            for path in (b"lazy.value", b"posing.value"):
                with self.assertRaises(Requeue):
                    deliver(body.replace(b"shop.tasks.pack", path))

    def test_no_replica_decides(self):
        """A router whose replica has nothing: a task that has ended is not called again."""
        with captured_messages() as messages:
            result = tasks.pack.enqueue(7)
        router = mock.Mock(spec=["db_for_read", "db_for_write"])
        router.db_for_read.return_value = "replica"
        router.db_for_write.return_value = "default"
        with override_settings(DATABASE_ROUTERS=[router]):
            deliver(messages[0].body)
            deliver(messages[0].body, 2)
            result.refresh()
            prune(timedelta(days=1))
        self.assertEqual((result.status, Order.objects.count()), (SUCCESSFUL, 1))


class Settings(TestCase):
    def test_wrong_options(self):
        for options, says in (
            ({"topic": "x"}, "unknown option 'topic'; did you mean 'topics'?"),
            ({"max_retries": 3}, "'max_attempts' counts the first try, too"),
            ({"max_tries": 3}, "put it into 'reader': {'max_attempts': ...}"),
            ({"reader": {"time_limt": 3}}, "did you mean 'time_limit'?"),
            ({"zzz": 1}, "there are alias, channel"),
            ({"outbox": "yes"}, "'outbox': 'yes'; it must be a bool"),
            ({"once": 5}, "it must be a bool or str"),
            ({"topics": {"mail": "no good"}}, "no good"),
            ({"channel": "no good"}, "no good"),
            ({"reader": {"max_attempts": -1}}, "max_attempts"),
            ({"reader": {"nonsense": 1}}, "nonsense"),
        ):
            with backend(**options), self.assertRaises(InvalidTaskBackend) as caught:
                task_backends["default"].topic("mail")
            self.assertIn(says, str(caught.exception))
            self.assertIn("TASKS['default']['OPTIONS']", str(caught.exception))

    def test_checks(self):
        self.assertEqual(task_backends["default"].check(), [])
        apps = ["gnsqsync.django.inbox", "gnsqsync.django.outbox", "gnsqsync.django.tasks"]
        with (
            backend(alias="nowhere", outbox=True, once=True),
            self.modify_settings(INSTALLED_APPS={"remove": apps}),
        ):
            texts = [message.msg for message in task_backends["default"].check()]
            self.assertEqual(len(texts), 4)
            self.assertIn("'once' needs 'gnsqsync.django.inbox'", " ".join(texts))
            with self.assertRaisesMessage(ImproperlyConfigured, "results needs"):
                tasks.pack.enqueue(7)

    def test_a_queue_that_is_no_topic(self):
        entry = {"BACKEND": "gnsqsync.django.tasks.NsqBackend", "QUEUES": []}
        with override_settings(TASKS={"default": entry}):
            with self.assertRaisesMessage(InvalidTask, "name its topic in OPTIONS['topics']"):
                tasks.pack.using(queue_name="no good")

    def test_prune(self):
        with eager:
            tasks.greet.enqueue("Ann")
        self.assertEqual(prune(timedelta(days=1)), 0)
        StoredResult.objects.update(finished_at=datetime.now(UTC) - timedelta(days=2))
        self.assertEqual(prune(timedelta(days=1)), 1)
        with self.assertRaises(ConfigError):
            prune(timedelta(0))

    def test_the_admin(self):
        with eager:
            result = tasks.greet.enqueue("Ann")
        self.client.force_login(User.objects.create_superuser("root"))
        page = self.client.get("/admin/gnsqsync_tasks/storedresult/")
        self.assertContains(page, result.id)
        page = self.client.get(f"/admin/gnsqsync_tasks/storedresult/{result.id}/change/")
        self.assertContains(page, "Hello, Ann")
