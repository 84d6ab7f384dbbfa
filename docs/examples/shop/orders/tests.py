"""``manage.py test orders``: no nsqd, no browser."""

from __future__ import annotations

import json
import uuid
from unittest import mock

from django.core import mail
from django.core.management import call_command
from django.test import TestCase

from gnsqsync.django.outbox import lag
from gnsqsync.django.test import CapturedMessage, captured_messages
from orders.mail import DatabaseBackend
from orders.models import Order, Product, SentMail
from orders.nsq_handlers import confirm

TEAPOT = "/products/teapot/"


def form(**fields: str) -> dict[str, str]:
    given = {"quantity": "2", "name": "Ann Otter", "email": "ann@mail.example"}
    return {"number": str(uuid.uuid4()), **given, **fields}


def relayed() -> list[CapturedMessage]:
    """What nsq_relay would publish now."""
    with captured_messages() as messages:
        call_command("nsq_relay", once=True, verbosity=0)
    return messages


class Ordering(TestCase):
    def test_an_order_is_published_by_the_relay(self) -> None:
        sent = form()
        answer = self.client.post(TEAPOT, sent)
        order = Order.objects.get()
        self.assertRedirects(answer, order.get_absolute_url())
        self.assertEqual((str(order.number), order.quantity), (sent["number"], 2))
        (message,) = relayed()
        self.assertEqual(message.topic, "orders")
        self.assertEqual(message.json(), {"order": sent["number"]})
        self.assertEqual(lag().waiting, 0)

    def test_a_form_that_is_sent_twice_is_one_order(self) -> None:
        sent = form()
        first = self.client.post(TEAPOT, sent)
        second = self.client.post(TEAPOT, {**sent, "quantity": "3"})
        self.assertEqual(first.url, second.url)
        self.assertEqual(Order.objects.get().quantity, 2)
        self.assertEqual(len(relayed()), 1)

    def test_what_is_wrong_is_told_and_nothing_is_ordered(self) -> None:
        for fields, text in (
            ({"name": ""}, "Say who you are."),
            ({"email": ""}, "Say where the confirmation is to go."),
            ({"email": "ann"}, "Give a whole address"),
            ({"quantity": "0"}, "Order at least one."),
            ({"quantity": "21"}, "Order 20 at most."),
            ({"number": "1"}, "The form was incomplete."),
        ):
            with self.subTest(fields):
                answer = self.client.post(TEAPOT, form(**fields))
                self.assertContains(answer, text, status_code=422)
        self.assertFalse(Order.objects.exists())
        self.assertEqual(relayed(), [])

    def test_no_order_without_its_message(self) -> None:
        # The second of the two inserts fails.
        with mock.patch("gnsqsync.django.outbox.publish", side_effect=OSError):
            with self.assertRaises(OSError):
                self.client.post(TEAPOT, form())
        self.assertFalse(Order.objects.exists())

    def test_an_unknown_product_or_order(self) -> None:
        for url in ("/products/car/", f"/orders/{uuid.uuid4()}/"):
            self.assertContains(self.client.get(url), "no such page", status_code=404)

    def test_names_are_shown_as_they_are_written(self) -> None:
        answer = self.client.post(TEAPOT, form(name="<b>Ann</b>"), follow=True)
        self.assertContains(answer, "&lt;b&gt;Ann&lt;/b&gt;")


class Confirming(TestCase):
    def setUp(self) -> None:
        self.order = Order.objects.create(
            product=Product.objects.get(slug="cup"), name="Ann Otter", email="ann@mail.example"
        )
        self.message = CapturedMessage(
            "orders", json.dumps({"order": str(self.order.number)}).encode()
        )

    def test_the_mail_and_the_state(self) -> None:
        waiting = self.client.get(self.order.get_absolute_url())
        self.assertContains(waiting, "Waiting.")
        self.assertContains(waiting, 'http-equiv="refresh"')
        confirm(self.message)
        (sent,) = mail.outbox
        self.assertEqual(sent.to, ["ann@mail.example"])
        self.assertIn("9.80 € in all", sent.body)
        confirmed = self.client.get(self.order.get_absolute_url())
        self.assertContains(confirmed, "Confirmed")
        self.assertNotContains(confirmed, 'http-equiv="refresh"')

    def test_a_message_that_comes_twice_is_one_mail(self) -> None:
        confirm(self.message)
        confirm(self.message)
        self.assertEqual(len(mail.outbox), 1)

    def test_mails_are_shown(self) -> None:
        self.assertContains(self.client.get("/mails/"), "None yet.")
        confirm(self.message)
        # Django keeps mails from the backend of the settings in tests.
        DatabaseBackend().send_messages(mail.outbox)
        self.assertEqual(SentMail.objects.get().recipient, "ann@mail.example")
        self.assertContains(self.client.get("/mails/"), "Your order: 1 × Cup")
