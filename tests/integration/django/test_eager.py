"""The eager mode as the tests of a project use it: handlers run with what a test publishes."""

from __future__ import annotations

import pytest

from tests.integration.django.conftest import ON_BOTH, Project
from tests.support.programs import Program

HANDLERS = """
from django.utils import translation
from gnsqsync import Requeue
from gnsqsync.django import nsq_handler, publish_on_commit
from shop.models import Order

seen = []


@nsq_handler("placed", "store", per_message_transaction=True)
def store(message):
    Order.objects.create(number=message.json(), worker=f"attempt {message.attempts}")
    publish_on_commit("stored", message.body)
    if message.attempts == 1:
        raise Requeue(delay=60)


@nsq_handler("placed", "count")
def count(message):
    seen.append(f"counted {message.json()}")


class Thanking:
    def __call__(self, message):
        order = Order.objects.get(number=message.json())
        seen.append(f"thanks for {order.number}")


nsq_handler("stored", "thanks", name="mail.thank", shared=True)(Thanking())


@nsq_handler("stored", "thanks", name="mail.thank_again", shared=True)
def never(message):
    raise AssertionError("one handler of a channel gets a message")


@nsq_handler("stored", "elsewhere", name="mail.elsewhere", alias="other")
def elsewhere(message):
    raise AssertionError("it consumes from other nsqds")


@nsq_handler("bad", "bad")
def bad(message):
    raise ValueError("a bug")


@nsq_handler("language", "language")
def language(message):
    seen.append(translation.get_language())
"""
URLS = """
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from gnsqsync.django import publish, publish_on_commit
from shop.models import Order


def place(request, topic, number):
    with transaction.atomic():
        publish_on_commit(topic, str(number))
    return HttpResponse(f"{Order.objects.filter(number=number).count()} stored")


urlpatterns = [path("<topic>/<int:number>/", place)]
"""
TESTS = """
import io
from urllib.error import HTTPError
from urllib.request import urlopen

from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import (
    LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase, override_settings
)
from django.utils import translation
from gnsqsync.django import get_writer, outbox, publish, publish_many
from gnsqsync.django.test import captured_messages
from mail import nsq_handlers
from mail.nsq_handlers import seen
from shop.models import Order


class Eager:
    def setUp(self):
        seen.clear()
        self.messages = self.enterContext(captured_messages(eager=True))

    def topics(self):
        return [f"{m.topic} {m.body.decode()}" for m in self.messages]


class OfOneTest(Eager, TestCase):
    def test_a_chain(self):
        with self.captureOnCommitCallbacks(execute=True):
            self.client.get("/placed/1/")
        self.assertEqual(Order.objects.get().worker, "attempt 2")
        self.assertEqual(seen, ["counted 1", "thanks for 1"])
        self.assertEqual(self.topics(), ["placed 1", "stored 1"])

    def test_a_failure_is_that_of_the_test(self):
        with self.assertRaisesMessage(ValueError, "a bug"):
            publish("bad", "1")
        with self.assertRaisesMessage(ValueError, "a bug"):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.get("/bad/1/")
        self.assertEqual(self.topics(), ["bad 1", "bad 1"])

    def test_the_language_of_a_request_is_not_that_of_a_handler(self):
        with translation.override("de"):
            publish("language", "1")
            self.assertEqual(translation.get_language(), "de")
        self.assertEqual(seen, ["en-us"])

    def test_queries_are_counted_over_the_handler(self):
        Order.objects.create(number=1)
        with self.assertNumQueries(3):
            Order.objects.count()
            publish("stored", "1")
            Order.objects.count()

    def test_the_outbox(self):
        outbox.publish("placed", "1")
        with self.captureOnCommitCallbacks(execute=True):
            call_command("nsq_relay", once=True, stdout=io.StringIO())
        self.assertEqual(seen, ["counted 1", "thanks for 1"])
        self.assertEqual(self.topics(), ["placed 1", "stored 1"])

    def test_a_failure_in_the_relay(self):
        outbox.publish("bad", "1")
        with self.assertRaisesMessage(ValueError, "a bug"):
            call_command("nsq_relay", once=True, stdout=io.StringIO())
        self.assertEqual(outbox.lag().waiting, 1)


class OfAllTests(Eager, TransactionTestCase):
    def test_a_chain(self):
        self.client.get("/placed/1/")
        self.assertEqual(Order.objects.get().worker, "attempt 2")
        self.assertEqual(seen, ["counted 1", "thanks for 1"])

    def test_the_connection_of_the_test_stays_open(self):
        Order.objects.bulk_create(Order(number=number) for number in range(300))
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE mine (number integer)")
        for order in Order.objects.order_by("number").iterator(chunk_size=100):
            publish("stored", str(order.number))
        self.assertEqual(len(seen), 300)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM mine")

    async def test_a_publish_on_another_thread(self):
        await Order.objects.acreate(number=1)
        def publish_there():
            publish("stored", "1")
            # That of the other thread, or its database could not be dropped.
            connection.close()

        await sync_to_async(publish_there, thread_sensitive=False)()
        self.assertEqual(seen, ["thanks for 1"])

    def test_transaction_that_rolls_back_runs_nothing(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            outbox.publish("placed", "1")
            1 / 0
        call_command("nsq_relay", once=True, stdout=io.StringIO())
        self.assertEqual((self.topics(), seen), ([], []))

    def test_the_relay(self):
        outbox.publish_many("placed", ["1", "2"])
        call_command("nsq_relay", once=True, stdout=io.StringIO())
        self.assertEqual(seen[:2], ["counted 1", "counted 2"])
        self.assertEqual(Order.objects.count(), 2)


class OnALiveServer(Eager, LiveServerTestCase):
    def test_a_chain(self):
        with urlopen(f"{self.live_server_url}/placed/1/", timeout=10) as answer:
            self.assertEqual(answer.read(), b"1 stored")
        self.assertEqual(self.topics(), ["placed 1", "stored 1"])

    def test_a_failure_is_that_of_the_request(self):
        with self.assertRaises(HTTPError):
            urlopen(f"{self.live_server_url}/bad/1/", timeout=10)


EAGER = {"default": {"BACKEND": "eager"}, "other": {"BACKEND": "memory"}}


@override_settings(GNSQSYNC=EAGER)
class BySettings(SimpleTestCase):
    def setUp(self):
        seen.clear()

    def test_handlers_run(self):
        publish_many("language", ["1", "2"])
        call_command("nsq_publish", "language", "3", stdout=io.StringIO())
        self.assertEqual(seen, ["en-us"] * 3)
        self.assertEqual(len(get_writer().messages), 3)

    def test_a_test_begins_with_nothing(self):
        self.assertEqual(get_writer().messages, [])
        with captured_messages() as messages:
            publish("language", "1")
        self.assertEqual((len(messages), seen), (1, []))

    def test_nothing_is_consumed(self):
        with self.assertRaisesMessage(CommandError, "GNSQSYNC['default'] has the eager backend"):
            call_command("nsq_consume", "mail.bad", stdout=io.StringIO())

    def test_the_settings_have_no_problem(self):
        call_command("check", stdout=io.StringIO(), stderr=io.StringIO())


class Plain(SimpleTestCase):
    def test_without_it_no_handler_runs(self):
        publish("bad", "1")
"""
FUNCTIONS = """
import pytest
from django.db import transaction
from django.utils import translation
from gnsqsync.django import get_writer, publish, publish_on_commit
from gnsqsync.django.test import captured_messages
from mail.nsq_handlers import seen
from shop.models import Order


@pytest.fixture
def handled():
    seen.clear()
    with captured_messages(eager=True) as messages:
        yield messages


@pytest.mark.django_db
def test_in_a_transaction(client, handled, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        client.get("/placed/1/")
    assert seen == ["counted 1", "thanks for 1"]
    assert len(handled) == 2


@pytest.mark.django_db(transaction=True)
def test_committing(client, handled):
    assert client.get("/placed/1/").content == b"1 stored"
    assert Order.objects.get().worker == "attempt 2"
    assert seen == ["counted 1", "thanks for 1"]


def test_a_live_server(live_server, handled):
    from urllib.request import urlopen
    assert urlopen(f"{live_server}/placed/1/", timeout=10).read() == b"1 stored"
    assert [m.topic for m in handled] == ["placed", "stored"]


def test_a_failure(handled):
    with pytest.raises(ValueError, match="a bug"):
        publish("bad", "1")


@pytest.mark.parametrize("number", [1, 2])
def test_by_settings(settings, number):
    seen.clear()
    entry = settings.GNSQSYNC["default"]
    settings.GNSQSYNC = {**settings.GNSQSYNC, "default": {**entry, "BACKEND": "eager"}}
    publish("language", "1")
    assert seen == ["en-us"]
    assert len(get_writer().messages) == 1


def test_without_it_no_handler_runs():
    publish("bad", "1")
"""


@pytest.fixture
def shop(project: Project) -> Project:
    (project.folder / "mail" / "nsq_handlers.py").write_text(HANDLERS)
    (project.folder / "urls.py").write_text(URLS)
    return project


@ON_BOTH
def test_the_runner_of_django(shop: Project) -> None:
    (shop.folder / "mail" / "tests.py").write_text(TESTS)
    output = shop.manage("test", "mail", "--noinput").end(timeout=90)
    assert "Ran 18 tests" in output and "\nOK" in output


def test_pytest_django(shop: Project) -> None:
    pytest.importorskip("pytest_django")
    (shop.folder / "test_functions.py").write_text(FUNCTIONS)
    words = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-n", "0"]
    command = Program([*words, "test_functions.py", "--ds", "settings"], shop.folder, {})
    try:
        assert "7 passed" in command.end(timeout=90)
    finally:
        command.kill()
