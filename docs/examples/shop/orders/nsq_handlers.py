"""Confirms orders: run by ``manage.py nsq_consume``."""

from __future__ import annotations

import logging

from django.utils import timezone

from gnsqsync import Message, Reject
from gnsqsync.django import nsq_handler
from orders.mail import send_confirmation
from orders.models import Order

log = logging.getLogger(__name__)


# What a killed consumer had comes to the next one after so many seconds, and not after a minute.
@nsq_handler(
    "orders",
    "confirm",
    per_message_transaction=True,
    msg_timeout=5.0,
    dead_letter_topic="orders-dead",
)
def confirm(message: Message) -> None:
    """Mail the confirmation, once, however often the message comes.

    The first statement is the one that changes the order: of two deliveries at the same time one
    waits there for the commit of the other, and then finds nothing to do.
    """
    try:
        number = message.json()["order"]
    except (ValueError, KeyError, TypeError):
        # No attempt makes an order of it, and no order shall wait for it.
        raise Reject("the body is no order") from None
    waiting = Order.objects.filter(number=number, state=Order.State.WAITING)
    if not waiting.update(state=Order.State.CONFIRMED, confirmed_at=timezone.now()):
        log.info("order %s is confirmed already", number)
        return
    order = Order.objects.select_related("product").get(number=number)
    send_confirmation(order)
    log.info("order %s is confirmed", number)
