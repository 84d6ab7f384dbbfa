"""Handlers with once=; run by manage.py test."""

import io
import json
from datetime import timedelta
from unittest import mock

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError
from django.test import TestCase, modify_settings, override_settings
from django.utils import timezone

from gnsqsync import Reject, Requeue
from gnsqsync.django import nsq_handler, publish
from gnsqsync.django.handlers import _handlers
from gnsqsync.django.inbox import prune
from gnsqsync.django.inbox.models import InboxMarker
from gnsqsync.django.test import captured_messages
from gnsqsync.errors import ConfigError
from gnsqsync.message import Uncalled
from shop.models import Order

with_headers = override_settings(
    GNSQSYNC={"default": {"NSQD": ["127.0.0.1:1"], "OPTIONS": {"headers": True}}}
)


@with_headers
class Once(TestCase):
    def setUp(self):
        handlers = mock.patch.dict(_handlers, clear=True)
        handlers.start()
        self.addCleanup(handlers.stop)

    def handle(self, function, **options):
        nsq_handler("paid", "store", name="test.paid", **options)(function)

    def send(self, key, body="1", eager=True):
        with captured_messages(eager=eager) as messages:
            publish("paid", body, headers={"key": key} if key else None)
        return messages

    def numbers(self):
        return sorted(order.number for order in Order.objects.all())

    def test_a_second_delivery_does_nothing(self):
        self.handle(lambda message: Order.objects.create(number=int(message.body)), once=True)
        self.send("a")
        with self.assertLogs("gnsqsync.django", "INFO") as logs:
            self.send("a")
        self.assertIn("paid/store: message with key a was handled before", logs.output[0])
        self.send("b", "2")
        self.send(None, "3")
        self.assertEqual(self.numbers(), [1, 2, 3])
        marker = InboxMarker.objects.get(key="a")
        self.assertEqual(marker.consumer, "paid/store")

    def test_a_failure_takes_its_marker_away(self):
        def fail(message):
            Order.objects.create(number=int(message.body))
            if message.attempts < 2:
                raise Requeue
            if message.body == b"7":
                raise ValueError

        self.handle(fail, once=True)
        self.send("a")
        self.assertEqual(self.numbers(), [1])
        with self.assertRaises(ValueError):
            self.send("b", "7")
        self.assertEqual((self.numbers(), InboxMarker.objects.count()), ([1], 1))

    def test_a_database_that_is_away_before_the_call_costs_no_try(self):
        self.handle(lambda message: Order.objects.create(number=1), once=True)
        message = mock.Mock(topic="paid", channel="store", headers={"key": "a"})
        for what in ("handlers.transaction.atomic", "once.mark"):
            path = f"gnsqsync.django.{what}"
            away = OperationalError("away")
            with mock.patch(path, side_effect=away), self.assertRaises(Uncalled) as caught:
                _handlers["test.paid"](message)
            self.assertIs(caught.exception.__cause__, away)
            # In eager mode nobody waits for it.
            with mock.patch(path, side_effect=away), self.assertRaises(OperationalError):
                self.send("a")
        self.assertEqual((self.numbers(), InboxMarker.objects.count()), ([], 0))

    def test_an_answer_that_would_not_wait_for_the_commit(self):
        for answer in ("finish", "requeue", "detach"):

            def early(message, answer=answer):
                Order.objects.create(number=1)
                message.touch()
                getattr(message, answer)()

            _handlers.clear()
            self.handle(early, once=True)
            with self.assertRaisesRegex(ConfigError, rf"has called {answer}\(\) of its message"):
                self.send(answer)
        self.assertEqual((self.numbers(), InboxMarker.objects.count()), ([], 0))

    def test_a_key_of_the_body(self):
        def key(message):
            return message.json().get("id")

        self.handle(lambda message: Order.objects.create(number=1), once=key)
        self.send(None, '{"id": "x"}')
        self.send(None, '{"id": "x"}')
        self.assertEqual(self.numbers(), [1])
        for wrong in ("{}", '{"id": ""}', '{"id": 5}'):
            with self.assertRaisesRegex(Reject, "the key of the message is"):
                self.send(None, wrong)

    def test_no_key(self):
        self.handle(lambda message: None, once=True)
        with override_settings(GNSQSYNC={"default": {"BACKEND": "memory"}}):
            with self.assertRaisesRegex(Reject, "publish with headers=True, or give once a func"):
                self.send(None)

    def test_error_names_the_place_of_a_wrong_argument(self):
        for says, options in (
            ("once is 'yes'; it must be True, False or a function", {"once": "yes"}),
            ("headers is False; give once= a function", {"once": True, "headers": False}),
        ):
            with self.assertRaises(ConfigError) as caught:
                self.handle(print, **options)
            self.assertIn(says, str(caught.exception))
        self.handle(print, once=True)
        self.assertTrue(_handlers["test.paid"].options["headers"])
        with modify_settings(INSTALLED_APPS={"remove": "gnsqsync.django.inbox"}):
            with override_settings(GNSQSYNC={"default": {"NSQD": ["127.0.0.1:1"]}}):
                with self.assertRaisesRegex(ConfigError, "once= needs 'gnsqsync.django.inbox'"):
                    _handlers["test.paid"].reader()


class Prune(TestCase):
    def setUp(self):
        now = timezone.now()
        InboxMarker.objects.bulk_create(
            InboxMarker(consumer="t/c", key=str(n), handled_at=now - timedelta(days=n))
            for n in range(10)
        )

    def test_by_age_in_batches(self):
        with self.assertNumQueries(7):
            # Two a turn: a SELECT, a DELETE; five old ones, and one look that finds none.
            deleted = prune(timedelta(days=5, hours=-1), batch=2)
        self.assertEqual((deleted, InboxMarker.objects.count()), (5, 5))
        for wrong in (timedelta(0), 5):
            with self.assertRaisesRegex(ConfigError, "it must be a timedelta above 0"):
                prune(wrong)

    def test_the_command(self):
        output = io.StringIO()
        call_command("nsq_inbox", stdout=output)
        self.assertRegex(output.getvalue(), r"^10 markers, the oldest of 20..-")
        output = io.StringIO()
        call_command("nsq_inbox", "--prune", "4.5", "--batch", "3", "--json", stdout=output)
        found = json.loads(output.getvalue())
        self.assertEqual((found["deleted"], found["markers"]), (5, 5))
        with self.assertRaisesRegex(CommandError, "--prune must be above 0"):
            call_command("nsq_inbox", "--prune", "0")

    def test_migrations_are_complete(self):
        call_command(
            "makemigrations", "--check", "--dry-run", "gnsqsync_inbox", stdout=io.StringIO()
        )
