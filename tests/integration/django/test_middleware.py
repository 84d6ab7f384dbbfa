"""Middleware, headers and typed bodies of a Django project."""

from __future__ import annotations

from tests.integration.django.conftest import Project

CARRY = """
from gnsqsync import Middleware
from gnsqsync.options import handler_name

seen = []


class Carry(Middleware):
    def publish(self, publication, proceed):
        publication.headers["by"] = "carry"
        return proceed(publication)

    def handle(self, message, handler, proceed):
        seen.append(f"before {handler_name(handler)} by {message.headers['by']}")
        return proceed(message)
"""
HANDLERS = """
from dataclasses import dataclass
from gnsqsync.django import nsq_handler
from mail.carry import seen


@dataclass
class Order:
    number: int


@nsq_handler("placed", "store", body=Order)
def store(message, order):
    seen.append(f"order {order.number} {message.headers['id']}")
"""
TESTS = """
from django.core.checks import run_checks
from django.test import SimpleTestCase, TestCase, override_settings
from gnsqsync import Reject
from gnsqsync.django import get_writer, publish, publish_many, publish_on_commit
from gnsqsync.django.handlers import all_handlers
from gnsqsync.django.test import captured_messages
from gnsqsync.errors import ConfigError
from mail.carry import seen


def settings(**entry):
    from django.conf import settings
    before = settings.GNSQSYNC["default"]
    entry = {"OPTIONS": {"headers": True}, "MIDDLEWARE": ["mail.carry.Carry"], **entry}
    return override_settings(GNSQSYNC={"default": {**before, **entry}})


@settings()
class Middleware(TestCase):
    def setUp(self):
        seen.clear()

    def test_publish_and_handle(self):
        with captured_messages(eager=True) as messages:
            publish("placed", '{"number": 5}', headers={"id": "a"})
            publish_many("placed", ['{"number": 6}'], headers={"id": "b"})
            with self.captureOnCommitCallbacks(execute=True):
                publish_on_commit("placed", '{"number": 7}', headers={"id": "c", "key": "k"})
            with self.assertRaises(Reject):
                publish("placed", "{}")
        self.assertEqual(seen[:2], ["before mail.nsq_handlers.store by carry", "order 5 a"])
        self.assertEqual(len(seen), 7)
        self.assertEqual(messages[2].headers, {"id": "c", "key": "k", "by": "carry"})

    def test_bad_headers_are_told_before_the_commit(self):
        with self.captureOnCommitCallbacks() as callbacks:
            with self.assertRaises(ConfigError):
                publish_on_commit("placed", "x", headers={"": "c"})
        self.assertEqual(callbacks, [])

    def test_a_reader_has_them(self):
        with settings(BACKEND="nsq"):
            reader = all_handlers()[0].reader()
        self.assertEqual([type(one).__name__ for one in reader._setup.middleware], ["Carry"])


class Checks(SimpleTestCase):
    def test_wrong_settings_are_errors_of_the_check(self):
        for value in ("mail.carry.Carry", ["mail.carry.Nothing"], [3]):
            with settings(MIDDLEWARE=value):
                found = [error.msg for error in run_checks() if "MIDDLEWARE" in error.msg]
                self.assertEqual(len(found), 1, value)
        with settings(OPTIONS={"middleware": []}):
            hints = [error.hint for error in run_checks()]
            self.assertIn("Its place is MIDDLEWARE.", hints)
"""


def test_in_the_tests_of_a_project(project: Project) -> None:
    (project.folder / "mail" / "carry.py").write_text(CARRY)
    (project.folder / "mail" / "nsq_handlers.py").write_text(HANDLERS)
    (project.folder / "mail" / "tests.py").write_text(TESTS)
    output = project.manage("test", "mail", "--noinput").end(timeout=90)
    assert "Ran 4 tests" in output and "\nOK" in output
