"""A management command that consumes: shop/management/commands/consume_orders.py."""

import signal

from django.core.management.base import BaseCommand
from django.db import close_old_connections
from shop.models import Order

from gnsqsync import Reader


def handle_order(message):
    close_old_connections()  # a worker lives longer than a database connection
    Order.objects.get_or_create(number=message.json()["number"])


class Command(BaseCommand):
    help = "Store the orders that arrive, until SIGTERM or Ctrl-C."

    def handle(self, **options):
        reader = Reader("orders", "shop", handle_order, nsqd_tcp_addresses="127.0.0.1:4150")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: reader.stop())
        reader.start()
