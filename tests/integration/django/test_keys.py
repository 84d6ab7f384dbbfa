"""Keys and names of inbox, outbox and schedule are equal when their bytes are, on each database."""

from __future__ import annotations

from tests.integration.django.conftest import ON_EACH, Project
from tests.support.keys import ALIKE

SCRIPT = """
from datetime import UTC, datetime, timedelta
from django.apps import apps
from django.core.management import call_command
from django.db import connection, transaction
from gnsqsync.django import schedule
from gnsqsync.django.inbox.markers import mark
from gnsqsync.django.outbox.models import PeriodicMessage
from gnsqsync.errors import ConfigError

later = datetime.now(UTC) + timedelta(days=1)

def refused(says, function, *arguments):
    try:
        function(*arguments)
    except ConfigError as error:
        assert says in str(error), error
    else:
        raise AssertionError("nothing was raised")

def old_mark(consumer, key):
    # The statement of the former version.
    ignore = ("INSERT IGNORE", "") if connection.vendor == "mysql" else (
        "INSERT", " ON CONFLICT DO NOTHING")
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(
            f"{ignore[0]} INTO gnsqsync_inbox_inboxmarker (consumer, {quote('key')}, handled_at)"
            f" VALUES (%s, %s, %s){ignore[1]}", [consumer, key, connection.ops
            .adapt_datetimefield_value(datetime.now(UTC))])
        return bool(cursor.rowcount)
"""
# On the tables of the former version.
BEFORE = """
call_command("migrate", "gnsqsync_outbox", "0002", verbosity=0)
call_command("migrate", "gnsqsync_inbox", "0001", verbosity=0)
assert old_mark("t/c", "Order-A")
if connection.vendor == "mysql":
    refused("manage.py migrate gnsqsync_inbox", mark, "default", "t/c", "order-a")
    refused("manage.py migrate gnsqsync_outbox", schedule.cancel, "order-a")
    refused("manage.py migrate gnsqsync_outbox", schedule.stop_periodic, "order-a")
"""
AFTER = """
call_command("migrate", verbosity=0)
assert not mark("default", "t/c", "Order-A")
for key in ALIKE:
    assert mark("default", "new/first", key), key
    assert not old_mark("new/first", key), key
    assert old_mark("old/first", key), key
    assert not mark("default", "old/first", key), key
    assert mark("default", key[-129:], "k"), key
    schedule.publish_at("t", "x", later, key=key)
for key in ALIKE:
    assert schedule.reschedule(key, later) == 1, key
    assert schedule.cancel(key) == 1, key
if apps.is_installed("gnsqsync.django.tasks"):
    from gnsqsync.django.tasks.models import StoredResult

    row = {"backend": "default", "task": "t", "queue_name": "q", "args": [], "kwargs": {},
           "status": "READY", "enqueued_at": later}
    ids = [key for key in ALIKE if len(key) <= 64]
    for id in ids:
        StoredResult.objects.create(id=id, **row)
        assert StoredResult.objects.get(pk=id, backend="default").id == id, id
    assert not StoredResult.objects.filter(backend="Default").exists()
names = [key for key in ALIKE if len(key) <= 100]
for name in names:
    schedule.periodic(name, "0 3 * * *", "t", name)
assert {one.name: bytes(one.body).decode() for one in PeriodicMessage.objects.all()} == {
    name: name for name in names}
for name in names:
    assert schedule.stop_periodic(name) and not schedule.stop_periodic(name), name
# A key that does not fit is refused before the database could cut it.
refused("1 to 200 printable", mark, "default", "t/c", "k" * 201)
refused("1 to 200 printable", mark, "default", "t/c", "a\\0b")
refused("1 to 129 printable", mark, "default", "c" * 130, "k")
# A marker that was there leaves the transaction usable.
with transaction.atomic():
    assert not mark("default", "t/c", "Order-A") and mark("default", "t/c", "next")
assert not mark("default", "t/c", "next")
"""


@ON_EACH
def test_keys_that_look_alike_are_different_for_old_and_new_programs(project: Project) -> None:
    project.migrate()
    project.shell(f"ALIKE = {ALIKE!a}\n{SCRIPT}{BEFORE}{AFTER}")
