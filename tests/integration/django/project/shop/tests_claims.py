"""Errors of check and of nsq_consume's start about handlers; run by manage.py test."""

import unittest
from unittest import mock

import django
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import SimpleTestCase, override_settings

from gnsqsync import Middleware
from gnsqsync.django import nsq_handler
from gnsqsync.django.handlers import _handlers
from gnsqsync.errors import ConfigError
from shop.tests import problems

ENTRY = {"NSQD": ["127.0.0.1:1"], "BACKEND": "nsq"}
HEADERS = {**ENTRY, "OPTIONS": {"headers": True}}


def mail(message):
    pass


def store(message):
    pass


class After(Middleware):
    def handle(self, message, handler, proceed):
        return proceed(message)


class Careful(After):
    fails_after_handler = False


class Claims(SimpleTestCase):
    def setUp(self):
        handlers = mock.patch.dict(_handlers, clear=True)
        handlers.start()
        self.addCleanup(handlers.stop)

    def refused(self, text, **entries):
        """Assert that check refuses it, and a start that asks no check."""
        (found,) = problems(**entries)
        self.assertIn(text, found)
        with override_settings(GNSQSYNC=entries):
            with self.assertRaises(CommandError) as caught:
                call_command("nsq_consume", "shop.mail")
        self.assertIn(text, str(caught.exception))
        return found

    def test_two_handlers_of_one_channel(self):
        nsq_handler("paid", "mail", name="shop.mail")(mail)
        nsq_handler("paid", "mail", name="shop.store")(store)
        text = "shop.tests_claims.mail and shop.tests_claims.store both consume paid/mail"
        self.assertIn("gnsqsync.E007", self.refused(text, default=ENTRY))

    def test_both_may_say_that_they_share_it(self):
        nsq_handler("paid", "mail", name="shop.mail", shared=True)(mail)
        nsq_handler("paid", "mail", name="shop.store", shared=True)(store)
        self.assertEqual(problems(default=ENTRY), [])
        (found, *_) = problems(default={**ENTRY, "OPTIONS": {"shared": True}})
        self.assertIn("Its place is @nsq_handler.", found)

    def test_entries_of_the_same_nsqds_are_one_cluster(self):
        nsq_handler("paid", "mail", name="shop.mail")(mail)
        nsq_handler("paid", "mail", name="shop.store", alias="other")(store)
        other = {"NSQD": ["a:4150", "localhost:1"], "LOOKUPD": ["b:4161"], "BACKEND": "nsq"}
        self.refused("both consume paid/mail", default=ENTRY, other=other)
        self.assertEqual(problems(default=ENTRY, other={**other, "NSQD": ["a:4150"]}), [])

    def test_one_name_has_one_channel(self):
        nsq_handler("paid", "mail")(mail)
        nsq_handler("paid", "mail")(mail)  # The module is imported again.
        with self.assertRaisesRegex(ConfigError, "for paid/mail and for made/mail under one name"):
            nsq_handler("made", "mail")(mail)

    def test_once_in_an_entry_without_headers(self):
        nsq_handler("paid", "mail", name="shop.mail", once=True)(mail)
        self.assertIn("E004", self.refused("once=True goes by the header 'key'", default=ENTRY))
        self.assertEqual(problems(default=HEADERS), [])

    def test_once_with_a_key_of_its_own_or_with_other_publishers(self):
        nsq_handler("paid", "mail", name="shop.mail", once=lambda message: "a")(mail)
        self.assertEqual(problems(default=ENTRY), [])
        nsq_handler("paid", "mail", name="shop.mail", once=True, headers=True)(mail)
        (found,) = problems(default=ENTRY)
        self.assertIn("gnsqsync.W009 shop.tests_claims.mail: messages that", found)

    def test_a_database_that_is_not_there(self):
        nsq_handler("paid", "mail", name="shop.mail", per_message_transaction="books")(mail)
        self.refused("there is no database 'books'", default=ENTRY)

    def test_a_middleware_that_may_fail_after_the_commit(self):
        nsq_handler("paid", "mail", name="shop.mail", once=True, middleware=[Careful()])(mail)
        entry = {**HEADERS, "MIDDLEWARE": [Careful]}
        self.assertEqual(problems(default=entry), [])
        (found,) = problems(default={**entry, "MIDDLEWARE": [Careful, After]})
        self.assertIn("gnsqsync.W008 shop.tests_claims.mail: if the middleware", found)
        self.assertIn("shop.tests_claims.After fails after the handler has returned", found)
        # Without once nothing is committed that would hide the failure.
        nsq_handler("paid", "mail", name="shop.mail", per_message_transaction=True)(mail)
        self.assertEqual(problems(default={**entry, "MIDDLEWARE": [After]}), [])

    def test_code_that_nobody_runs_is_a_failure(self):
        async def work():
            raise AssertionError("nobody runs it")

        nsq_handler("paid", "mail", name="shop.mail")(lambda message: work())
        message = mock.Mock(is_detached=False, is_answered=False)
        with self.assertRaisesRegex(ConfigError, "returned a coroutine, which nobody runs"):
            _handlers["shop.mail"].handle(message)


@unittest.skipIf(django.VERSION < (6,), "Django has no tasks")
class TasksAndHandlers(SimpleTestCase):
    def setUp(self):
        handlers = mock.patch.dict(_handlers, clear=True)
        handlers.start()
        self.addCleanup(handlers.stop)

    def with_tasks(self, **options_of):
        kind = "gnsqsync.django.tasks.NsqBackend"
        return override_settings(
            TASKS={
                alias: {"BACKEND": kind, "QUEUES": ["default", "mail"], "OPTIONS": options}
                for alias, options in options_of.items()
            }
        )

    def test_queues_of_one_backend_may_share_a_topic_and_two_backends_not(self):
        one = {"topics": {"default": "work", "mail": "work"}}
        with self.with_tasks(default=one):
            self.assertEqual(problems(default=ENTRY), [])
        with self.with_tasks(default=one, second={"topics": {"mail": "work"}}):
            found = problems(default=ENTRY)
        self.assertEqual(len(found), 2)
        self.assertIn("E007 the queue 'default' of TASKS['default'] and the queue", found[0])

    def test_a_handler_of_the_topic_of_a_queue(self):
        nsq_handler("tasks.mail", "tasks", name="shop.mail")(mail)
        with self.with_tasks(default={}):
            (found,) = problems(default=ENTRY)
        self.assertIn("E007 shop.tests_claims.mail and the queue 'mail' of TASKS['default']", found)

    def test_a_queue_that_could_not_be_consumed_is_told_before_the_start(self):
        with self.with_tasks(default={"reader": {"dead_letter_topic": "tasks.mail"}}):
            found = problems(default=ENTRY)
        self.assertIn("E004 the queue 'mail' of TASKS['default']: dead_letter_topic is", found[0])
