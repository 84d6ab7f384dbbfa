"""The inbox on each database: twins that come at once, and a consumer that is killed."""

from __future__ import annotations

import signal
from collections import Counter

from gnsqsync import Writer
from tests.integration.conftest import address
from tests.integration.django.conftest import IN_BOTH_WORLDS, Project
from tests.support.waiting import eventually

KEYS = 60
HANDLER = """

import uuid


@nsq_handler(TOPIC, "once", name="shop.once", once=True, headers=True, concurrency=4,
             max_in_flight=50, backoff=False, max_attempts=0, requeue_delay=0.1, msg_timeout=2.0)
def once(message):
    # Begun twins would overlap.
    Order.objects.create(number=uuid.uuid4().int % 2**31, worker=message.body.decode())
    time.sleep(0.005)
"""


@IN_BOTH_WORLDS
def test_twins_beside_each_other_and_a_kill(project: Project, gevent: bool) -> None:
    project.migrate()
    project.make_channel("once")
    with open(project.folder / "shop" / "nsq_handlers.py", "a") as file:
        file.write(HANDLER)
    # A connection for each message costs MariaDB more than the message timeout allows.
    environment = {"SHOP_CONN_MAX_AGE": "null"}
    if gevent:
        environment["SHOP_GEVENT"] = "1"
    killed, other = (project.manage("nsq_consume", "shop.once", **environment) for _ in range(2))
    with Writer(address(project.nsqd), headers=True) as writer:
        for number in range(KEYS):
            for _ in range(2):
                writer.publish(project.topic, str(number), headers={"key": f"order-{number}"})
            if number == KEYS // 2:
                eventually(lambda: len(project.orders()) > 5)
                killed.kill()

    def is_done() -> bool:
        found = project.channel("once")
        return not (found.depth or found.in_flight_count or found.deferred_count)

    eventually(is_done)
    other.signal(signal.SIGTERM)
    other.end()
    stored = Counter(worker for _, worker in project.orders())
    assert stored == Counter({str(number): 1 for number in range(KEYS)})
    ((markers,),) = project.database.ask("SELECT count(*) FROM gnsqsync_inbox_inboxmarker")
    assert markers == KEYS
