"""How the bank publishes: in its transaction, or without the outbox after it."""

import json

from django.conf import settings

from gnsqsync.django import outbox, publish_on_commit


def send(topic, body, after=None):
    data = json.dumps(body)
    if settings.WITHOUT == "outbox":
        publish_on_commit(topic, data, defer=after)
    else:
        outbox.publish(topic, data, defer=after)
