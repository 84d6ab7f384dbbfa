"""What the tests consume; the environment names the topic, so that tests share an nsqd."""

import os
import threading
import time
from pathlib import Path

from django.db import connections

from gnsqsync import Requeue
from gnsqsync.django import nsq_handler, publish_on_commit
from shop.models import Order

TOPIC = os.environ.get("SHOP_TOPIC", "orders")
FOLDER = Path(__file__).parent.parent


def note(text):
    """One line to a file, in one write: handlers of several processes share it."""
    with open(FOLDER / "notes", "ab", 0) as file:
        file.write(f"{text}\n".encode())


if "SHOP_POOL" in os.environ:
    # As a project does that reads something at its start: the parent of all processes has a pool.
    Order.objects.count()


@nsq_handler(TOPIC, "shop", concurrency=4, max_in_flight=100, max_backoff_duration=0)
def store_order(message):
    number = message.json()["number"]
    Order.objects.create(number=number, worker=f"{os.getpid()} {threading.get_ident()}")
    # The connection is the worker's until its handler returns.
    time.sleep(float(os.environ.get("SHOP_PAUSE", "0")))


@nsq_handler(TOPIC, "slow", concurrency=2, max_in_flight=50)
def slowly(message):
    note(f"begun {message.body.decode()}")
    time.sleep(float(os.environ.get("SHOP_SECONDS", "1")))
    note(f"done {message.body.decode()}")


@nsq_handler(TOPIC, "transaction", per_message_transaction=True, max_backoff_duration=0)
def in_a_transaction(message):
    number = message.json()["number"]
    order = Order.objects.create(number=number, worker=f"attempt {message.attempts}")
    publish_on_commit(f"{TOPIC}_stored", str(order.number))
    assert connections["default"].in_atomic_block
    if message.attempts == 1:
        raise Requeue(0)


@nsq_handler(TOPIC, "version", name="mail.version")
def version(message):
    note("version 1")


@nsq_handler(TOPIC, "process", max_in_flight=1, max_attempts=0, max_backoff_duration=0)
def process(message):
    note(f"process {os.getpid()}")
    time.sleep(0.05)
