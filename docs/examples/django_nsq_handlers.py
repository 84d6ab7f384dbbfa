"""What an app of a Django project consumes: shop/nsq_handlers.py.

In the settings, beside "gnsqsync.django" in INSTALLED_APPS:
GNSQSYNC = {"default": {"NSQD": ["127.0.0.1:4150"]}}
"""

from shop.models import Order

from gnsqsync.django import nsq_handler


@nsq_handler("orders", "shop", concurrency=4)
def store_order(message):
    Order.objects.get_or_create(number=message.json()["number"])
