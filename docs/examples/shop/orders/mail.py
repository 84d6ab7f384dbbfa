"""The confirmation, and an e-mail backend that keeps mails in the database."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from orders.models import Order, SentMail


def send_confirmation(order: Order) -> None:
    EmailMessage(
        subject=f"Your order: {order}",
        body=(
            f"Hello {order.name},\n\n"
            f"we have your order of {order}, {order.total} € in all. It is on its way.\n\n"
            f"Its number is {order.number}.\n"
        ),
        to=[order.email],
        # The same for the same order: a mail server that gets it twice can tell.
        headers={"Message-ID": f"<{order.number}@shop.example>"},
    ).send()


class DatabaseBackend(BaseEmailBackend):
    """Sends by writing a row, in the transaction of the caller: with its commit, or not at all."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        for mail in email_messages:
            SentMail.objects.create(
                message_id=mail.message()["Message-ID"],
                recipient=", ".join(mail.recipients()),
                subject=mail.subject,
                body=mail.body,
            )
        return len(email_messages)
