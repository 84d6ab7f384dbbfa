"""How the bank publishes: in its transaction, or without the outbox after it."""

import json
import time

from django.conf import settings
from django.db import transaction

from gnsqsync.django import outbox, publish_on_commit

# Seconds from the commit to the publish, as under load: else a kill hardly ever falls between them.
GAP = 0.03


def send(topic, body, after=None):
    data = json.dumps(body)
    if settings.WITHOUT == "outbox":
        transaction.on_commit(lambda: time.sleep(GAP))
        publish_on_commit(topic, data, defer=after)
    else:
        outbox.publish(topic, data, defer=after)
