"""Two databases: a row belongs to the transaction that is open, and no replica decides."""

from __future__ import annotations

import shutil

import pytest

from tests.integration.django.conftest import Project

TRANSACTIONS = """
from datetime import UTC, datetime, timedelta
from django.db import transaction
from gnsqsync.django import outbox, publish_on_commit, schedule
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.errors import ConfigError

later = datetime.now(UTC) + timedelta(days=1)
schedule.publish_at("t", "kept", later, key="kept")
calls = [
    lambda **where: publish_on_commit("t", "never", **where),
    lambda **where: outbox.publish("t", "x", **where),
    lambda **where: outbox.publish_many("t", ["x", "y"], **where),
    lambda **where: schedule.publish_at("t", "x", later, **where),
    lambda **where: schedule.publish_after("t", "x", 60, **where),
    lambda **where: schedule.cancel("kept", **where),
    lambda **where: schedule.reschedule("kept", later, **where),
    lambda **where: schedule.periodic("n", "0 3 * * *", "t", "x", **where),
    lambda **where: schedule.stop_periodic("n", **where),
]
for call in calls:
    with transaction.atomic(using="other"):
        try:
            call()
        except ConfigError as error:
            assert "give using='other', or using='default' if that is meant" in str(error), error
        else:
            raise AssertionError("it was written outside of the transaction")
assert OutboxMessage.objects.get().key == "kept"
try:
    with transaction.atomic(using="other"):
        for call in calls:
            call(using="other")
        assert OutboxMessage.objects.using("other").count() == 5
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
assert OutboxMessage.objects.using("other").count() == 0
with transaction.atomic(using="other"):
    outbox.publish("t", "meant", using="default")
    # A transaction of the right database is open, too.
    with transaction.atomic():
        outbox.publish("t", "inner")
assert outbox.lag("default").waiting == 2 and outbox.lag("other").waiting == 0
"""
ROUTERS = """
class Replica:
    # The replica never gets what the other database has.
    def db_for_read(self, model, **hints):
        return "other"

    def db_for_write(self, model, **hints):
        return "default"


class Elsewhere:
    def db_for_write(self, model, **hints):
        return "other"

    db_for_read = db_for_write
"""
REPLICA = """
import io
from datetime import UTC, datetime, timedelta
from django.core.management import call_command
from gnsqsync.django import outbox, schedule
from gnsqsync.django.inbox import prune
from gnsqsync.django.inbox.markers import mark
from gnsqsync.django.outbox.models import PeriodicMessage
from gnsqsync.django.outbox.relay import OutboxStore

later = datetime.now(UTC) + timedelta(days=1)
outbox.publish("t", "x")
schedule.publish_at("t", "x", later, key="k")
lag = outbox.lag()
assert (lag.waiting, lag.scheduled) == (1, 1), lag
assert schedule.reschedule("k", later) == 1 and schedule.cancel("k") == 1
schedule.periodic("n", "0 3 * * *", "t", "x")
schedule.periodic("n", "0 4 * * *", "t", "x")
assert PeriodicMessage.objects.using("default").get().cron == "0 4 * * *"
PeriodicMessage.objects.using("default").update(next_at=datetime.now(UTC) - timedelta(days=1))
store = OutboxStore("default")
assert store.add_due(datetime.now(UTC)) == 1 and store.lag().waiting == 2
assert schedule.stop_periodic("n")
assert mark("default", "t/c", "k") and not mark("default", "t/c", "k")
assert prune(timedelta(microseconds=1)) == 1
"""


@pytest.fixture
def both(project: Project) -> Project:
    """The project with the tables in both databases."""
    project.migrate()
    shutil.copy(project.folder / "shop.sqlite3", project.folder / "other.sqlite3")
    (project.folder / "routers.py").write_text(ROUTERS)
    return project


def test_a_row_outside_of_the_open_transaction_is_refused(both: Project) -> None:
    both.shell(TRANSACTIONS, SHOP_OTHER="")


def test_no_replica_decides(both: Project) -> None:
    both.shell(REPLICA, SHOP_OTHER="routers.Replica")


def test_the_relay_looks_where_the_router_writes(both: Project) -> None:
    router = "routers.Elsewhere"
    publish = f"from gnsqsync.django import outbox; outbox.publish({both.topic!r}, 'x')"
    both.shell(publish, SHOP_OTHER=router)
    assert "1 waiting" in both.manage("nsq_relay", "--lag", SHOP_OTHER=router).end()
    assert "0 waiting" in both.manage("nsq_relay", "--lag", SHOP_OTHER="").end()
    output = both.manage("nsq_relay", "--once", SHOP_OTHER=router).end()
    assert "publishing the outbox of other" in output and "1 published" in output
