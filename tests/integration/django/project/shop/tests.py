"""What the author of a Django project tests; run by manage.py test."""

import io
import threading
from contextvars import Context
from datetime import timedelta
from functools import partial
from unittest import mock, skipIf
from urllib.request import urlopen

import django
from django.conf import settings as of_project
from django.contrib.auth.models import User
from django.core import checks, mail
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command, load_command_class
from django.core.management.base import CommandError
from django.db import Error, InterfaceError, connection, transaction
from django.test import (
    LiveServerTestCase,
    SimpleTestCase,
    TestCase,
    TransactionTestCase,
    override_settings,
)
from django.utils import timezone, translation

from gnsqsync import Requeue
from gnsqsync.django import (
    get_writer,
    nsq_handler,
    outbox,
    publish,
    publish_many,
    publish_on_commit,
)
from gnsqsync.django.handlers import all_handlers
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.relay import OutboxStore
from gnsqsync.django.test import CapturedMessage, captured_messages
from gnsqsync.django.writers import close_writers, relay_writer
from gnsqsync.errors import (
    ClosedError,
    ConfigError,
    NotSent,
    OutcomeUnknown,
    PubFailed,
    Refused,
)
from gnsqsync.outbox.relay import Relay
from gnsqsync.reader.contexts import context_maker
from gnsqsync.testing.memory import MemoryWriter
from shop.models import Order

GOOD = {"default": {"NSQD": ["127.0.0.1:1"]}}
# What a project says that wants an nsqd in its tests.
REAL = {"default": {**GOOD["default"], "BACKEND": "nsq"}, "other": {"BACKEND": "memory"}}
reaches_nsqd = override_settings(GNSQSYNC=REAL)


class FakeMessage:
    """What a handler needs of one."""

    def __init__(self, number, attempts=1):
        self.body = b'{"number": %d}' % number
        self.number = number
        self.attempts = attempts

    def json(self):
        return {"number": self.number}


def handler(name):
    (found,) = (h for h in all_handlers() if h.name == name)
    return found


def relay_of(database="default", **options):
    return Relay(OutboxStore(database), **options)


def problems(**settings):
    with override_settings(GNSQSYNC=settings.pop("GNSQSYNC", settings)):
        return [
            f"{m.id} {m.msg} {m.hint}"
            for m in checks.run_checks()
            if (m.id or "").startswith("gnsqsync")
        ]


class Publishing(SimpleTestCase):
    def test_captured(self):
        with captured_messages() as messages:
            publish("orders", "é", defer=3)
            publish_many("orders", [b'{"a": 1}', "b"])
            get_writer().publish_async("mail", b"c").result(0)
        self.assertEqual(
            messages,
            [
                CapturedMessage("orders", "é".encode(), 3),
                CapturedMessage("orders", b'{"a": 1}'),
                CapturedMessage("orders", b"b"),
                CapturedMessage("mail", b"c"),
            ],
        )
        self.assertEqual(messages[1].json(), {"a": 1})

    def test_messages_that_a_writer_refuses_are_refused(self):
        with captured_messages() as messages:
            for topic, body in (("no good", "x"), ("orders", ""), ("orders", b"x" * 1048577)):
                with self.assertRaises(ConfigError):
                    publish(topic, body)
            for bodies in ([], "one text", [b"x", b""]):
                with self.assertRaises(ConfigError):
                    publish_many("orders", bodies)
            with self.assertRaises(ConfigError):
                publish("orders", "x", defer=-1)
            with self.assertRaises(ConfigError):
                publish("orders", "x", timeout="soon")
        self.assertEqual(messages, [])

    @reaches_nsqd
    def test_the_writer_is_one_and_comes_back_after_a_capture(self):
        before = get_writer()
        self.assertNotIsInstance(before, MemoryWriter)
        with self.assertRaisesMessage(AttributeError, "what it publishes leaves the process"):
            _ = before.messages
        with captured_messages():
            self.assertIsNot(get_writer(), before)
            with captured_messages() as inner:
                publish("orders", "x")
            self.assertEqual(len(inner), 1)
        self.assertIs(get_writer(), before)

    def test_the_memory_backend(self):
        writer = get_writer("other")
        publish("orders", "x", alias="other")
        self.assertEqual(writer.messages, [CapturedMessage("orders", b"x")])
        self.assertEqual((writer.is_connected, writer.stats().published), (True, 1))
        writer.connect()
        writer.ping()
        writer.close()
        with self.assertRaises(ClosedError):
            publish("orders", "x", alias="other")
        with override_settings(GNSQSYNC={"other": {"BACKEND": "memory"}}):
            self.assertIsNot(get_writer("other"), writer)

    def test_captured_messages_outlive_a_command_that_closes_writers(self):
        with captured_messages() as messages:
            for body in ("1", "2"):
                call_command("nsq_publish", "orders", body, stdout=io.StringIO())
        self.assertEqual([message.body for message in messages], [b"1", b"2"])
        writer = get_writer("other")
        call_command("nsq_publish", "orders", "x", alias="other", stdout=io.StringIO())
        self.assertIs(get_writer("other"), writer)
        self.assertEqual(len(writer.messages), 1)

    @reaches_nsqd
    def test_nothing_is_connected_until_the_first_publish(self):
        with self.assertRaises(NotSent):
            publish("orders", "x", timeout=0.2)

    def test_settings_reach_the_writer(self):
        with override_settings(
            GNSQSYNC={
                "default": {
                    "NSQD": "127.0.0.1:1,127.0.0.1:2",
                    "BACKEND": "nsq",
                    "OPTIONS": {
                        "publish_timeout": 0.1,
                        "max_attempts": 7,
                        "client_id": "me",
                        "policy": "failover",
                        "outage": "wait",
                    },
                }
            }
        ):
            writer = get_writer()
            self.assertIn("127.0.0.1:1, 127.0.0.1:2", repr(writer))
            self.assertEqual((writer._publish_timeout, writer._policy), (0.1, "failover"))
            self.assertEqual(writer._outage, "wait")
            self.assertEqual(writer._options.client_id, "me")
            reader = handler("shop.slowly").reader(concurrency=3)
            self.assertEqual(reader._setup.flow.max_attempts, 7)
            self.assertEqual(reader._setup.flow.concurrency, 3)
            self.assertEqual(reader._setup.options.client_id, "me")
        with override_settings(
            GNSQSYNC={"default": {**REAL["default"], "LOOKUPD": ["127.0.0.1:3"]}}
        ):
            self.assertEqual(repr(get_writer()), "<Writer to 127.0.0.1:1>")
            setup = handler("shop.slowly").reader()._setup
            self.assertEqual((setup.nsqds, len(setup.lookups.urls)), ((), 1))
        with override_settings(
            GNSQSYNC={"default": {"LOOKUPD": ["127.0.0.1:3"], "BACKEND": "nsq"}}
        ):
            self.assertIn("127.0.0.1:3", repr(get_writer()))

    def test_an_alias_that_is_not_there(self):
        with self.assertRaisesMessage(ImproperlyConfigured, "'default', 'other'"):
            get_writer("othre")


class Forgotten(TransactionTestCase):
    """Tests that do not say that nothing may leave the process."""

    def bodies(self):
        return [message.body for message in get_writer().messages]

    def test_each_way_to_publish_is_captured(self):
        publish("orders", "1")
        publish_many("orders", ["2", "3"])
        get_writer().publish_async("orders", b"4").result(0)
        with transaction.atomic():
            publish_on_commit("orders", "5")
            self.assertEqual(len(self.bodies()), 4)
        outbox.publish("orders", "6")
        call_command("nsq_relay", once=True, stdout=io.StringIO())
        call_command("nsq_publish", "orders", "7", stdout=io.StringIO())
        thread = threading.Thread(target=publish, args=("orders", "8"))
        thread.start()
        thread.join()
        self.assertEqual(self.bodies(), [b"%d" % number for number in range(1, 9)])

    def test_a_test_begins_with_nothing(self):
        self.assertEqual(self.bodies(), [])
        publish("orders", "1")
        self.assertEqual(self.bodies(), [b"1"])

    def test_a_test_begins_with_nothing_again(self):
        self.test_a_test_begins_with_nothing()

    def test_a_writer_that_was_made_before_the_tests_is_not_used(self):
        with mock.patch.object(mail, "outbox"):
            del mail.outbox
            self.assertNotIsInstance(get_writer(), MemoryWriter)
        publish("orders", "1")
        self.assertEqual(self.bodies(), [b"1"])

    def test_captured_messages_has_those_of_its_block_only(self):
        publish("orders", "1")
        with captured_messages() as messages:
            publish("orders", "2")
        self.assertEqual([message.body for message in messages], [b"2"])
        self.assertEqual(self.bodies(), [b"1"])

    def test_a_change_of_the_settings_loses_none(self):
        with override_settings(GNSQSYNC={"default": {"LOOKUPD": ["127.0.0.1:3"]}}):
            publish("orders", "1")
        publish("orders", "2")
        self.assertEqual(self.bodies(), [b"1", b"2"])

    def test_no_real_queue_is_consumed(self):
        with self.assertRaisesMessage(CommandError, "'BACKEND': 'nsq' in it allows a real one"):
            call_command("nsq_consume", "shop.slowly", stdout=io.StringIO())


class LiveServer(LiveServerTestCase):
    def test_messages_of_its_threads_are_captured(self):
        with urlopen(f"{self.live_server_url}/publish/", timeout=10) as answer:
            self.assertEqual(answer.read(), b"published")
        self.assertEqual([message.body for message in get_writer().messages], [b"from a view"])


class OnCommit(TestCase):
    def test_publish_waits_for_the_commit(self):
        body = bytearray(b"1")
        with captured_messages() as messages:
            with self.captureOnCommitCallbacks(execute=True):
                publish_on_commit("orders", "é", defer=2)
                publish_on_commit("orders", bytes(body))
                body[0] = 0
                self.assertEqual(messages, [])
        self.assertEqual(
            messages, [CapturedMessage("orders", "é".encode(), 2), CapturedMessage("orders", b"1")]
        )

    def test_wrong_arguments_are_refused_at_once(self):
        with self.captureOnCommitCallbacks() as callbacks:
            with self.assertRaises(ConfigError):
                publish_on_commit("no good", "x")
            with self.assertRaises(ConfigError):
                publish_on_commit("orders", "")
        self.assertEqual(callbacks, [])

    def test_a_rollback_publishes_nothing(self):
        with captured_messages() as messages, self.captureOnCommitCallbacks(execute=True):
            try:
                with transaction.atomic():
                    publish_on_commit("orders", "x")
                    raise ValueError
            except ValueError:
                pass
        self.assertEqual(messages, [])


class OnCommitForReal(TransactionTestCase):
    def test_outside_of_a_transaction_it_is_at_once(self):
        with captured_messages() as messages:
            publish_on_commit("orders", "x")
        self.assertEqual(len(messages), 1)

    @reaches_nsqd
    def test_a_failure_is_raised_after_the_commit_or_logged(self):
        with self.assertRaises(NotSent):
            with transaction.atomic():
                Order.objects.create(number=1)
                publish_on_commit("orders", "x", timeout=0.1)
        self.assertEqual(Order.objects.count(), 1)
        with self.assertLogs("django", "ERROR"), transaction.atomic():
            publish_on_commit("orders", "x", timeout=0.1, robust=True)


class Outbox(TestCase):
    def rows(self):
        return [(m.topic, bytes(m.body), m.alias) for m in OutboxMessage.objects.all()]

    def test_rows_come_and_go_with_the_transaction(self):
        outbox.publish("orders", "é")
        try:
            with transaction.atomic():
                outbox.publish("orders", "never")
                raise ValueError
        except ValueError:
            pass
        outbox.publish_many("orders", [b"a", "b"], alias="other")
        self.assertEqual(
            self.rows(),
            [
                ("orders", "é".encode(), "default"),
                ("orders", b"a", "other"),
                ("orders", b"b", "other"),
            ],
        )
        self.assertEqual((outbox.lag().waiting, outbox.lag("default").failed), (3, 0))

    def test_wrong_arguments_are_refused_at_once(self):
        for arguments in (("no good", "x"), ("orders", ""), ("orders", b"x" * 1048577)):
            with self.assertRaises(ConfigError):
                outbox.publish(*arguments)
        with self.assertRaises(ConfigError):
            outbox.publish("orders", "x", defer=-1)
        with self.assertRaises(ConfigError):
            outbox.publish_many("orders", "x")
        with self.assertRaises(ImproperlyConfigured):
            outbox.publish("orders", "x", alias="nobody")
        self.assertEqual(self.rows(), [])

    def test_the_relay_publishes_and_deletes(self):
        outbox.publish_many("orders", ["1", "2"])
        outbox.publish("mails", "3", defer=600)
        outbox.publish("mails", "4", alias="other")
        with captured_messages() as messages, captured_messages("other") as others:
            self.assertEqual(relay_of().move_batch(), 3)
            self.assertEqual(relay_of().move_batch(), 0)
            self.assertEqual(outbox.lag(), outbox.Lag(0, 0, 0.0, scheduled=1))
            OutboxMessage.objects.update(retry_at=timezone.now())
            self.assertEqual(relay_of().move_batch(), 0, "a row of a former version")
            OutboxMessage.objects.update(deliver_at=timezone.now())
            self.assertEqual(relay_of().move_batch(), 1)
        self.assertEqual(
            messages,
            [
                CapturedMessage("orders", b"1"),
                CapturedMessage("orders", b"2"),
                CapturedMessage("mails", b"3"),
            ],
        )
        self.assertEqual(others, [CapturedMessage("mails", b"4")])
        self.assertEqual(outbox.lag(), outbox.Lag(0, 0, 0.0))

    def test_an_nsqd_that_is_away_costs_no_attempt(self):
        outbox.publish_many("orders", ["1", "2"])
        relay = relay_of()
        options = {"publish_timeout": 0.1}
        with override_settings(
            GNSQSYNC={**REAL, "default": {**REAL["default"], "OPTIONS": options}}
        ):
            self.assertEqual(relay.move_batch(), 0)
        self.assertEqual(
            list(OutboxMessage.objects.values_list("attempts", "failed_at")), [(0, None)] * 2
        )
        self.assertIn("refused", OutboxMessage.objects.first().last_error)
        with captured_messages() as messages:
            self.assertEqual(relay.move_batch(), 0, "it pauses")
            self.assertEqual(relay_of().move_batch(), 2)
        self.assertEqual(len(messages), 2)

    def test_writer_of_the_relay_waits_in_an_outage_whatever_others_do(self):
        options = {"publish_timeout": 0.1, "outage": "fail"}
        with override_settings(
            GNSQSYNC={**REAL, "default": {**REAL["default"], "OPTIONS": options}}
        ):
            writer = relay_writer("default")
            self.assertEqual((writer._outage, writer._publish_timeout), ("wait", 0.1))
            self.assertEqual(get_writer()._outage, "fail")
            self.assertIs(relay_writer("default"), writer)
            close_writers()
            self.assertTrue(writer._closed)
            self.assertIsNot(relay_writer("default"), writer)
        self.assertIs(relay_writer("other"), get_writer("other"))
        with captured_messages():
            self.assertIs(relay_writer("default"), get_writer())

    @reaches_nsqd
    def test_part_of_a_batch_was_confirmed(self):
        outbox.publish_many("orders", ["1", "2", "3"])
        error = OutcomeUnknown("lost")
        error.acknowledged = 2
        with mock.patch.object(relay_writer("default"), "_publish_many", side_effect=error):
            self.assertEqual(relay_of().move_batch(), 2)
        self.assertEqual([body for _, body, _ in self.rows()], [b"3"])

    @reaches_nsqd
    def test_one_that_is_refused_does_not_stop_the_others(self):
        def publish_many(topic, bodies, timeout):
            for body in bodies:
                publish(topic, body)

        def publish(topic, body, *options):
            if body == b"bad":
                raise Refused("no", PubFailed("E_PUB_FAILED"))

        outbox.publish_many("orders", ["1", "bad", "2"])
        writer, relay = relay_writer("default"), relay_of(max_attempts=2)
        with mock.patch.multiple(writer, _publish=publish, _publish_many=publish_many):
            self.assertEqual(relay.move_batch(), 2)
            (bad,) = OutboxMessage.objects.all()
            self.assertEqual((bad.attempts, bad.failed_at, bad.last_error), (1, None, "no"))
            self.assertEqual(relay.move_batch(), 0)
            self.assertEqual(OutboxMessage.objects.get().attempts, 1, "not due yet")
            OutboxMessage.objects.update(retry_at=timezone.now())
            relay.move_batch()
        self.assertEqual((outbox.lag().waiting, outbox.lag().failed), (0, 1))
        with captured_messages():
            self.assertEqual(relay.move_batch(), 0)

    def test_row_that_the_writer_itself_refuses_has_failed(self):
        outbox.publish("orders", "x" * 100)
        options = {"max_msg_size": 50}
        with override_settings(
            GNSQSYNC={**REAL, "default": {**REAL["default"], "OPTIONS": options}}
        ):
            relay_of().move_batch()
        self.assertEqual(outbox.lag().failed, 1)

    def test_the_oldest(self):
        outbox.publish("orders", "x")
        OutboxMessage.objects.update(created_at=timezone.now() - timedelta(seconds=90))
        outbox.publish("orders", "y")
        self.assertAlmostEqual(outbox.lag().oldest_seconds, 90, delta=20)

    def test_migrations_are_complete(self):
        call_command(
            "makemigrations", "--check", "--dry-run", "gnsqsync_outbox", stdout=io.StringIO()
        )

    def test_the_admin(self):
        self.client.force_login(User.objects.create_superuser("root"))
        outbox.publish("orders", b"caf\xc3\xa9 \xff")
        outbox.publish("mails", b"x")
        OutboxMessage.objects.filter(topic="mails").update(failed_at=timezone.now(), attempts=9)
        url = "/admin/gnsqsync_outbox/outboxmessage/"
        page = self.client.get(url, {"state": "failed"})
        self.assertContains(page, "mails")
        waiting = OutboxMessage.objects.get(topic="orders").pk
        self.assertNotContains(page, f"{url}{waiting}/change/")
        keys = list(OutboxMessage.objects.values_list("pk", flat=True))
        answer = self.client.post(
            url, {"action": "try_again", "_selected_action": keys}, follow=True
        )
        self.assertContains(answer, "Due now: 2 messages.")
        self.assertEqual((outbox.lag().waiting, outbox.lag().failed), (2, 0))
        page = self.client.get(f"{url}{keys[0]}/change/")
        self.assertContains(page, "café \\xff")
        self.assertNotContains(page, 'name="_save"')
        self.assertEqual(self.client.get(f"{url}add/").status_code, 403)


class Handlers(TestCase):
    """Called in the thread of the test, a handler sees its transaction and leaves it alone."""

    def test_the_connection_of_the_test_stays(self):
        before = connection.connection
        with mock.patch.dict(connection.settings_dict, CONN_MAX_AGE=0):
            handler("shop.store_order")(FakeMessage(1))
            handler("shop.store_order").worker_ended()
        self.assertIs(connection.connection, before)
        self.assertEqual(Order.objects.count(), 1)

    def test_a_message_rolls_back_what_it_raised_in(self):
        in_a_transaction = handler("shop.in_a_transaction")
        with captured_messages() as messages, self.captureOnCommitCallbacks(execute=True):
            with self.assertRaises(Requeue):
                in_a_transaction(FakeMessage(5))
            self.assertEqual(Order.objects.count(), 0)
            in_a_transaction(FakeMessage(5, attempts=2))
        self.assertEqual([m.body for m in messages], [b"5"])

    def test_the_function_stays_as_it_is(self):
        from shop.nsq_handlers import store_order

        store_order(FakeMessage(2))
        self.assertEqual(Order.objects.get().number, 2)


class Contexts(SimpleTestCase):
    """Things that Django keeps in context variables, in two messages of one worker."""

    def of_two_messages(self, function, *arguments):
        def as_a_worker():
            handler("shop.store_order")._worker_began()
            new_context = context_maker()
            return [new_context().run(function, *arguments) for _ in range(2)]

        return Context().run(as_a_worker)

    def test_language_and_time_zone_end_with_their_message(self):
        def handle():
            before = (translation.get_language(), timezone.get_current_timezone_name())
            translation.activate("de")
            timezone.activate("Asia/Tokyo")
            return before

        with timezone.override("Europe/Vienna"):
            first, second = self.of_two_messages(handle)
        self.assertEqual(first, (of_project.LANGUAGE_CODE, of_project.TIME_ZONE))
        self.assertEqual(second, first)

    def test_caches_and_their_connections_stay_with_the_worker(self):
        first, second = self.of_two_messages(lambda: caches["default"])
        self.assertIs(first, second)

    @skipIf(django.VERSION < (6,), "there are no tasks")
    def test_task_backends_stay_with_the_worker(self):
        from django.tasks import task_backends

        first, second = self.of_two_messages(lambda: task_backends["default"])
        self.assertIs(first, second)

    def test_a_cache_that_cannot_be_made_is_the_matter_of_who_uses_it(self):
        wrong = {"default": {"BACKEND": "shop.nothing.Cache"}}
        with override_settings(CACHES=wrong), self.assertLogs("gnsqsync.django", "INFO") as logs:
            self.assertEqual(self.of_two_messages(lambda: 1), [1, 1])
        self.assertIn("CacheHandler cannot be made at the start of a worker", logs.output[0])


class Connections(TransactionTestCase):
    def test_an_old_connection_is_closed_and_a_young_one_kept(self):
        store_order = handler("shop.store_order")
        for age, kept in ((0, False), (None, True), (60, True)):
            connection.close()
            with mock.patch.dict(connection.settings_dict, CONN_MAX_AGE=age):
                store_order(FakeMessage(100 + len(str(age))))
                self.assertEqual(connection.connection is not None, kept, age)
                Order.objects.all().delete()
        store_order.worker_ended()
        self.assertIsNone(connection.connection)

    def test_a_broken_one_is_replaced_also_after_an_exception(self):
        store_order = handler("shop.store_order")
        # As a database that was restarted; SQLite itself would always call it usable.
        broken = mock.patch.object(connection, "is_usable", return_value=False)
        as_is = {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
        with mock.patch.dict(connection.settings_dict, as_is), broken:
            connection.close()
            Order.objects.create(number=1)
            connection.connection.close()
            with self.assertRaises(Error):
                store_order(FakeMessage(2))
            store_order(FakeMessage(2))
        self.assertEqual(Order.objects.count(), 2)

    def test_a_failing_close_is_logged_and_the_message_is_done(self):
        with mock.patch.object(
            connection, "close_if_unusable_or_obsolete", side_effect=InterfaceError("gone")
        ):
            with self.assertLogs("gnsqsync.django", "WARNING") as logs:
                handler("shop.store_order")(FakeMessage(3))
        self.assertEqual(len(logs.records), 2)
        self.assertEqual(Order.objects.count(), 1)


class Registering(SimpleTestCase):
    def test_names(self):
        self.assertEqual(
            [h.name for h in all_handlers()],
            [
                "mail.send",
                "mail.version",
                "shop.in_a_transaction",
                "shop.process",
                "shop.slowly",
                "shop.store_order",
            ],
        )

    def test_error_names_the_place_of_a_wrong_argument(self):
        async def coroutine(message):
            pass

        def generator(message):
            yield

        def takes_two(request, message):
            pass

        def good(message):
            pass

        for text, arguments, function in (
            ("topic", {"topic": "no good"}, good),
            ("did you mean 'concurrency'", {"concurency": 2}, good),
            ("GNSQSYNC['default']", {"nsqd_tcp_addresses": "x"}, good),
            ("coroutine is a coroutine function", {}, coroutine),
            ("the handler of t/c is a coroutine function", {}, partial(coroutine)),
            ("generator is a generator function", {}, generator),
            ("takes_two(request, message): missing a required argument: 'message'", {}, takes_two),
            ("it must be a callable that takes a message", {}, lambda: None),
            ("alias of a database", {"per_message_transaction": 1}, good),
            ("'shop.slowly'", {"name": "shop.slowly"}, good),
        ):
            with self.assertRaisesMessage(ConfigError, text):
                nsq_handler(**{"topic": "t", "channel": "c", **arguments})(function)


class Checks(SimpleTestCase):
    def test_this_project_has_none(self):
        self.assertEqual(problems(GNSQSYNC={**GOOD, "other": {"BACKEND": "memory"}}), [])

    def test_each_problem_says_what_would_be_right(self):
        for settings, words in (
            ({"GNSQSYNC": None}, "E001 missing Set GNSQSYNC = {"),
            ({"GNSQSYNC": {}}, "E001 at least one entry"),
            ({"GNSQSYNC": {"NSQD": ["127.0.0.1:1"]}}, "E001 'NSQD' one level deeper"),
            ({"default": ["127.0.0.1:1"]}, "E001 must be a dict"),
            ({"default": {"NSQDS": ["127.0.0.1:1"], "NSQD": "a"}}, "E002 'NSQDS' mean 'NSQD'"),
            ({"default": {"nsqd": "a", "LOOKUPD": ["b"]}}, "E002 'nsqd' mean 'NSQD'"),
            ({"default": {"NSQD": "a", "snappy": True}}, "E002 Put it into 'OPTIONS'"),
            ({"default": {"NSQD": "a", "OUTAGE": "wait"}}, "E002 'OPTIONS': {'outage': ...}"),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"outage": "no"}}},
                "E003 outage is 'no' 'fail' 'wait'",
            ),
            ({"default": {"NSQD": "a", "X": 1}}, "E002 Known are NSQD, LOOKUPD,"),
            ({"default": {"NSQD": 4150}}, "E003 4150 Give a list of addresses"),
            ({"default": {"NSQD": ["a:b"]}}, "E003 a:b"),
            ({"default": {}}, "E003 has no address Give NSQD"),
            ({"default": {"NSQD": "a", "BACKEND": "locmem"}}, "E003 'memory' for tests"),
            ({"default": {"NSQD": "a", "OPTIONS": 1}}, "E003 must be a dict"),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"publish_timout": 1}}},
                "E002 'publish_timout' Did you mean 'publish_timeout'?",
            ),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"max_tries": 1}}},
                "E002 'max_tries' Did you mean 'max_attempts'?",
            ),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"message_handler": 1}}},
                "E002 Its place is @nsq_handler",
            ),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"timeout": 1}}},
                "E002 'connect_timeout' limits connecting,",
            ),
            (
                {"default": {"NSQD": "a", "maxAttempts": 3}},
                "E002 Put it into 'OPTIONS': {'max_attempts': ...}",
            ),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"nsqd_tcp_addresses": "a"}}},
                "E002 Its place is NSQD",
            ),
            (
                {"default": {"NSQD": "a", "OPTIONS": {"heartbeat_interval": 0}}},
                "E003 heartbeat_interval 1 to 60",
            ),
        ):
            found = problems(**settings)
            self.assertTrue(found, settings)
            for word in words.split(" "):
                self.assertIn(word, found[0], settings)
            if settings.get("GNSQSYNC", settings):
                with (
                    self.assertRaises((ImproperlyConfigured, ConfigError)),
                    override_settings(GNSQSYNC=settings.get("GNSQSYNC", settings)),
                ):
                    get_writer()

    def test_an_invalid_observer(self):
        for observer, text in ((1, "must be a function"), ("shop.x", "has no attribute 'x'")):
            (found,) = problems(default={"NSQD": "a", "OBSERVER": observer})
            self.assertIn("gnsqsync.E003 GNSQSYNC['default']: 'OBSERVER' is", found)
            self.assertIn(text, found)

    def test_a_handler_of_an_unknown_alias(self):
        (found,) = problems(**GOOD)
        self.assertIn("E004 mail.nsq_handlers.send: GNSQSYNC has no entry 'other'", found)

    def test_a_handler_against_the_options_of_the_settings(self):
        options = {"OPTIONS": {"max_backoff_duration": 5000}}
        found = problems(default={**GOOD["default"], **options}, other={"BACKEND": "memory"})
        self.assertIn("max_backoff_duration", found[0])

    def test_where_given_up_messages_go_may_be_said_in_the_other_place(self):
        other = {"BACKEND": "memory"}
        needs = {**GOOD["default"], "OPTIONS": {"max_deliveries": 50}}
        # The entry is right by itself, only these handlers add nothing to it.
        found = problems(default=needs, other=other)
        self.assertTrue(found)
        for text in found:
            self.assertIn("E004", text)
            self.assertIn("needs dead_letter_topic or on_giving_up", text)
        both = {**needs, "OPTIONS": {**needs["OPTIONS"], "dead_letter_topic": "dead"}}
        self.assertEqual(problems(default=both, other=other), [])
        # As an import that fails leaves nothing behind.
        with mock.patch.dict("gnsqsync.django.handlers._handlers"):
            nsq_handler("t", "c", name="shop.often", max_deliveries=50)(print)
            (found,) = problems(default=GOOD["default"], other=other)
            self.assertIn("E004", found)
            dead = {**GOOD["default"], "OPTIONS": {"dead_letter_topic": "dead"}}
            self.assertEqual(problems(default=dead, other=other), [])


class Commands(SimpleTestCase):
    def out_of(self, *arguments, **options):
        out = io.StringIO()
        call_command(*arguments, stdout=out, **options)
        return out.getvalue()

    def test_list(self):
        lines = self.out_of("nsq_consume", "--list").splitlines()
        self.assertEqual(lines[0].split(), ["name", "topic", "channel", "alias", "function"])
        self.assertEqual(
            lines[1].split(), ["mail.send", "sent", "mail", "other", "mail.nsq_handlers.send"]
        )
        self.assertEqual(len(lines), 7)

    def test_names_topics_and_channels(self):
        def listed(*arguments):
            lines = self.out_of("nsq_consume", "--list", *arguments).splitlines()
            return [line.split()[0] for line in lines[1:]]

        self.assertEqual(listed("shop.slowly", "slowly"), ["shop.slowly"])
        self.assertEqual(listed("mail"), ["mail.send", "mail.version"])
        self.assertEqual(listed("mail", "slowly"), ["mail.send", "mail.version", "shop.slowly"])
        self.assertEqual(listed("--topic", "sent"), ["mail.send"])
        self.assertEqual(
            listed("--channel", "slow", "--channel", "mail"), ["mail.send", "shop.slowly"]
        )
        for arguments, text in (
            (["slow"], "no handler is called 'slow'; there are mail.send"),
            (["mail", "--topic", "x"], "no handler for topic x"),
        ):
            with self.assertRaisesMessage(CommandError, text):
                listed(*arguments)

    def test_a_memory_alias_is_not_consumed(self):
        with self.assertRaisesMessage(
            CommandError, "mail.send cannot consume: GNSQSYNC['other'] has the memory"
        ):
            self.out_of("nsq_consume", "mail.send", stderr=io.StringIO())

    def test_a_closed_output_takes_all(self):
        apps = {"nsq_consume": "gnsqsync.django", "nsq_relay": "gnsqsync.django.outbox"}
        with mock.patch("sys.stdout", None), mock.patch("sys.stderr", None):
            commands = [load_command_class(app, name) for name, app in apps.items()]
        for command in commands:
            command.stdout.write("x")
            command.stderr.write("x")

    @reaches_nsqd
    def test_publish_says_what_became_of_it(self):
        with captured_messages() as messages:
            out = self.out_of("nsq_publish", "orders", "a", "b")
            self.assertEqual(out, "2 published to orders\n")
        self.assertEqual([m.body for m in messages], [b"a", b"b"])
        with self.assertRaisesMessage(CommandError, "0 published to orders, then:"):
            self.out_of("nsq_publish", "orders", "a", "--timeout", "0.1")
        with self.assertRaisesMessage(CommandError, "topic"):
            self.out_of("nsq_publish", "no good", "a")
