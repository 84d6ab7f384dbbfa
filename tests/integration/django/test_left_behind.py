"""Rows that a former version left in the database are finished by this one."""

from __future__ import annotations

import json
import signal

import django
import pytest

from gnsqsync import Message, Reader
from tests.integration.conftest import address
from tests.integration.django.conftest import ON_BOTH, ON_EACH, MariaDatabase, Project
from tests.support.left_behind import django_rows

# Rows as the former version had them, with a topic of this test, on the tables of its migrations.
FILL = """
import base64, json, os
from django.core.management import call_command
from django.db import connection

def value(given):
    return base64.b64decode(given["base64"]) if isinstance(given, dict) else given

found = json.load(open(os.environ["LEFT_BEHIND"]))
for app, name in found["migrations"].items():
    call_command("migrate", app, name, verbosity=0)
for table, rows in found["tables"].items():
    for row in rows:
        if isinstance(row["id"], int):
            # The database numbers rows by itself.
            del row["id"]
        row = {name: value(one) for name, one in row.items()}
        if row.get("topic"):
            topic = os.environ["SHOP_TOPIC"]
            row["topic"] = topic if row["topic"] == "orders" else f"{topic}_tasks"
        for name, one in row.items():
            if name.endswith("_at") and one is not None and connection.vendor == "postgresql":
                row[name] = one + "+00:00"
        quote = connection.ops.quote_name
        columns = ", ".join(map(quote, row))
        marks = ", ".join(["%s"] * len(row))
        with connection.cursor() as cursor:
            query = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"
            cursor.execute(query, [*row.values()])
call_command("migrate", run_syncdb=True, verbosity=0)
"""
MARK = """
from django.db import transaction
from gnsqsync.django.inbox.markers import mark

for key in "order-1", "Order-1", "naïve ", "x" * 128, "order-2", "naive ", "ORDER-1":
    with transaction.atomic():
        print(int(mark("default", "orders/shop", key)), end=" ")
"""


@pytest.fixture
def left(project: Project) -> Project:
    """A project whose database the former version has filled, after ``migrate``."""
    found = django_rows()
    tables = sorted(
        name for name in found["tables"] if django.VERSION >= (6,) or "_tasks_" not in name
    )
    if isinstance(project.database, MariaDatabase):
        # MariaDB's former tables took keys that look alike for equal, so they never had these rows.
        tables = [name for name in tables if "_inbox_" not in name]
    migrations = {
        app: name
        for app, name in found["migrations"].items()
        if django.VERSION >= (6,) or app != "gnsqsync_tasks"
    }
    rows = {"migrations": migrations, "tables": {name: found["tables"][name] for name in tables}}
    (project.folder / "rows.json").write_text(json.dumps(rows))
    project.shell(FILL, LEFT_BEHIND="rows.json")
    return project


def taken(project: Project, topic: str, wanted: set[bytes]) -> dict[bytes, dict[str, str]]:
    """Return headers by body of the messages of a topic, until all wanted bodies have come."""
    found: dict[bytes, dict[str, str]] = {}

    def handle(message: Message) -> None:
        found[message.body] = dict(message.headers)
        if wanted <= set(found):
            reader.stop()

    reader = Reader(topic, "left", handle, nsqd_tcp_addresses=address(project.nsqd), headers=True)
    reader.start()
    return found


@ON_BOTH
def test_outbox_schedule_and_inbox(left: Project) -> None:
    options = {"SHOP_OPTIONS": '{"headers": true}'}
    relay = left.manage("nsq_relay", "--interval", "0.1", **options)
    # Six bodies; that of each night may have come, too.
    wanted = {b"plain", b"traced", b"soon", b"tried", b"former", b"minute"}
    found = taken(left, left.topic, wanted)
    relay.signal(signal.SIGTERM)
    relay.end()
    assert set(found) - {b"night"} == wanted
    assert found[b"soon"]["key"] == "Soon-1" and found[b"traced"]["trace"] == "Grüße"
    keys = {r["key"] for r in django_rows()["tables"]["gnsqsync_outbox_outboxmessage"]}
    assert {
        headers["key"] for body, headers in found.items() if body in (b"plain", b"tried")
    } < keys
    lag = json.loads(left.manage("nsq_relay", "--lag", "--json").end())
    assert (lag["waiting"], lag["failed"], lag["scheduled"]) == (0, 1, 1)
    assert left.shell(MARK).split() == [*"0000111"]


@pytest.mark.skipif(django.VERSION < (6,), reason="Django has tasks since version 6")
@ON_EACH
def test_tasks(left: Project) -> None:
    topics = {"default": f"{left.topic}_tasks"}
    environment = {"SHOP_TASK_OPTIONS": json.dumps({"outbox": True, "topics": topics})}
    environment["SHOP_OPTIONS"] = '{"headers": true}'
    relay = left.manage("nsq_relay", "--interval", "0.1", **environment)
    worker = left.manage("nsq_tasks", "default", **environment)
    query = "SELECT status FROM gnsqsync_tasks_storedresult"
    worker.eventually(lambda: left.database.ask(query) == [("SUCCESSFUL",)] * 2)
    for program in worker, relay:
        program.signal(signal.SIGTERM)
        program.end()
    assert sorted(number for number, _ in left.orders()) == [1, 2]
