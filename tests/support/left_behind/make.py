"""The writer of the data set that a version leaves behind: rows, and a data path of nsqd.

Runs with the version whose data the tests keep, on a Python with Django 6, SQLAlchemy and cronsim:

    PYTHONPATH=<checkout of that version> python tests/support/left_behind/make.py <folder>

Knows only what the documentation of that version promises.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

FAR = datetime(2101, 1, 1, tzinfo=UTC)


def portable(value: Any) -> Any:
    """Return a value of SQLite in a form for JSON."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value


def dump(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the tables of gnsqsync, by table."""
    found: dict[str, list[dict[str, Any]]] = {}
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            if name.startswith("gnsqsync"):
                rows = database.execute(f'SELECT * FROM "{name}"').fetchall()
                found[name] = [
                    {key: portable(value) for key, value in dict(row).items()} for row in rows
                ]
    return found


def make_django(path: Path) -> dict[str, Any]:
    """Write rows with Django's side of the package. Return the tables and their migrations."""
    import django
    from django.conf import settings

    apps = ["gnsqsync.django", *(f"gnsqsync.django.{app}" for app in ("inbox", "outbox", "tasks"))]
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", *apps],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        GNSQSYNC={"default": {"BACKEND": "memory", "OPTIONS": {"headers": True}}},
        TASKS={
            "default": {
                "BACKEND": "gnsqsync.django.tasks.NsqBackend",
                "QUEUES": ["default", "mail"],
                "OPTIONS": {"outbox": True},
            }
        },
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.db.migrations.recorder import MigrationRecorder

    call_command("migrate", verbosity=0)
    from gnsqsync.django import outbox, schedule
    from gnsqsync.django.inbox.markers import mark
    from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage

    outbox.publish("orders", "plain")
    outbox.publish("orders", "traced", headers={"trace": "Grüße"})
    schedule.publish_after("orders", "soon", timedelta(seconds=5), key="Soon-1")
    schedule.publish_at("orders", "far", FAR, key="far-1")
    outbox.publish("orders", "tried")
    OutboxMessage.objects.filter(body=b"tried").update(attempts=3, last_error="E_PUB_FAILED")
    outbox.publish("orders", "failed")
    OutboxMessage.objects.filter(body=b"failed").update(
        failed_at=datetime.now(UTC), attempts=9, last_error="E_BAD_MESSAGE"
    )
    outbox.publish("orders", "former")
    OutboxMessage.objects.filter(body=b"former").update(key=None, headers=None)
    schedule.periodic("nightly", "0 3 * * *", "orders", "night", timezone="Europe/Berlin")
    schedule.periodic("minutes", "*/5 * * * *", "orders", "minute", timezone="UTC", missed="once")
    PeriodicMessage.objects.filter(name="minutes").update(next_at=datetime.now(UTC))
    with transaction.atomic():
        for key in "order-1", "Order-1", "naïve ", "x" * 128:
            assert mark("default", "orders/shop", key)
    # A task waits in the outbox. The worker of another task was killed, so that one waits in nsqd.
    from django.tasks import task

    from gnsqsync.django.tasks.models import StoredResult

    def pack(number: int) -> int:
        return number

    pack.__module__, pack.__qualname__ = "shop.tasks", "pack"
    import types

    module = types.ModuleType("shop.tasks")
    sys.modules.update({"shop": types.ModuleType("shop"), "shop.tasks": module})
    module.pack = known = task(pack)  # type: ignore[attr-defined]
    known.enqueue(1)
    killed = known.enqueue(2)
    StoredResult.objects.filter(id=killed.id).update(
        status="RUNNING",
        started_at=datetime.now(UTC),
        last_attempted_at=datetime.now(UTC),
        worker_ids=["host:1"],
    )
    applied = MigrationRecorder(connection).applied_migrations()
    newest: dict[str, str] = {}
    for app, name in sorted(applied):
        if app.startswith("gnsqsync"):
            newest[app] = name
    connection.close()
    return {"migrations": newest, "tables": dump(path)}


def make_sqlalchemy(path: Path) -> str:
    """Write rows with SQLAlchemy's side of the package. Return the database as SQL."""
    from sqlalchemy import MetaData, create_engine
    from sqlalchemy.orm import Session

    from gnsqsync import Writer
    from gnsqsync.contrib.sqlalchemy import Inbox, Outbox

    engine = create_engine(f"sqlite:///{path}")
    metadata = MetaData()
    writer = Writer("127.0.0.1:1", headers=True)
    outbox = Outbox(metadata, lambda: writer, engine=engine)
    inbox = Inbox(metadata)
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.publish(session, "orders", "plain")
        outbox.publish(session, "orders", "traced", headers={"trace": "Grüße"})
        outbox.publish(session, "orders", "later", defer=5)
        columns = {"consumer": "orders/shop", "handled_at": datetime.now(UTC)}
        for key in "order-1", "Order-1", "naïve ":
            session.execute(inbox.table.insert().values(key=key, **columns))
    writer.close()
    engine.dispose()
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump()) + "\n"


def make_nsqd(folder: Path) -> None:
    """Leave messages on disk: a backend of a topic, of a channel, and a paused channel."""
    from gnsqsync import NsqdHTTP, Writer
    from gnsqsync.embedded import Nsqd

    folder.mkdir()
    with Nsqd(data_path=folder, mem_queue_size=2) as nsqd:
        with NsqdHTTP(nsqd.http_address) as http, Writer(nsqd.tcp_address) as writer:
            http.create_topic("orders")
            http.create_channel("orders", "shop")
            http.create_channel("orders", "paused")
            http.pause_channel("orders", "paused")
            writer.publish_many("orders", [f"order {number}" for number in range(20)])
            writer.publish_many("unread", [f"unread {number}" for number in range(20)])


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        rows = make_django(Path(work) / "django.sqlite3")
        text = make_sqlalchemy(Path(work) / "sqlalchemy.sqlite3")
    (folder / "django.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    (folder / "sqlalchemy.sql").write_text(text)
    make_nsqd(folder / "nsqd")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
