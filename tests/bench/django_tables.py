"""The relay and the inbox on PostgreSQL or SQLite, with the databases' usual safety.

    python -m tests.bench.django_tables relay [--rows 100000] [--batch 100] [--database sqlite]
    python -m tests.bench.django_tables inbox [--messages 2000] [--rounds 5] [--database sqlite]
    python -m tests.bench.django_tables tasks [--messages 2000] [--rounds 5] [--database sqlite]

``relay``: writes rows that were due within one minute, has one relay publish them to a real nsqd,
and says how many a second. ``inbox``: calls a handler that writes one row, without a transaction,
in one, and with once=True, by turns; what a message costs in microseconds. ``tasks``: enqueues
tasks that do nothing at a real nsqd, or in the outbox, and handles them; on Django 6.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnsqsync import Message
from tests.support.postgres import Postgres
from tests.support.servers import Server

APPS = ["gnsqsync.django", "gnsqsync.django.inbox", "gnsqsync.django.outbox"]


@contextmanager
def database(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Django's settings for one that is empty."""
    if kind == "sqlite":
        name = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "bench.sqlite3")}
        yield {**name, "CONN_MAX_AGE": None}
        return
    server = Postgres()
    try:
        server.start(fsync=True)
        yield {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "HOST": server.host,
            "CONN_MAX_AGE": None,
        }
    finally:
        from django.db import connections

        connections.close_all()
        server.close()


def set_up(settings: dict[str, Any], nsqd: str) -> None:
    import django
    from django.conf import settings as given
    from django.core.management import call_command

    given.configure(
        INSTALLED_APPS=APPS,
        DATABASES={"default": settings},
        USE_TZ=True,
        GNSQSYNC={"default": {"NSQD": [nsqd], "OPTIONS": {"headers": True}}},
    )
    django.setup()
    call_command("migrate", verbosity=0)


def relay(given: argparse.Namespace, folder: Path, settings: dict[str, Any]) -> None:
    server = Server("real", "nsqd")
    try:
        server.start()
        set_up(settings, "{}:{}".format(*server.tcp_address))
        run_relay(given)
    finally:
        server.terminate()
        server.discard()


def run_relay(given: argparse.Namespace) -> None:
    from datetime import timedelta

    from django.db import connection
    from django.utils import timezone

    from gnsqsync.django.outbox.models import OutboxMessage
    from gnsqsync.django.outbox.relay import OutboxStore
    from gnsqsync.django.writers import close_writers, get_writer
    from gnsqsync.outbox.relay import Relay

    get_writer().connect(10)
    due = timezone.now() - timedelta(minutes=1)
    step = timedelta(seconds=60) / given.rows
    OutboxMessage.objects.bulk_create(
        (
            OutboxMessage(
                topic="bench",
                body=b"x" * 200,
                headers={},
                key=f"{number:032x}",
                deliver_at=due + number * step,
                retry_at=due + number * step,
            )
            for number in range(given.rows)
        ),
        batch_size=1000,
    )
    with connection.cursor() as cursor:
        # As the database does by itself after a while.
        cursor.execute("ANALYZE")
    moved = Relay(OutboxStore("default"), batch=given.batch)
    wall, cpu = time.monotonic(), time.process_time()
    moved.run(until_empty=True)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    assert moved.published == given.rows
    print(
        f"{given.database}, batch {given.batch}: {given.rows} rows in {wall:.1f} s,"
        f" {given.rows / wall:.0f} a second, {cpu / given.rows * 1e6:.0f} us CPU each"
    )
    close_writers()


class Answers:
    """In place of a connection."""

    topic, channel, nsqd_address, is_closed = "bench", "bench", "127.0.0.1:4150", False


def inbox(given: argparse.Namespace, folder: Path, settings: dict[str, Any]) -> None:
    set_up(settings, "127.0.0.1:4150")
    from django.utils import timezone

    from gnsqsync import envelope
    from gnsqsync.django.handlers import Handler, all_handlers, nsq_handler
    from gnsqsync.django.outbox.models import OutboxMessage

    def work(message: Message) -> None:
        OutboxMessage.objects.create(topic="bench", body=b"x", created_at=timezone.now())

    ways: dict[str, dict[str, Any]] = {
        "no transaction": {},
        "per_message_transaction": {"per_message_transaction": True},
        "once": {"once": True},
    }
    for name, options in ways.items():
        nsq_handler("bench", "bench", name=name, **options)(work)
    handlers: dict[str, Handler] = {handler.name: handler for handler in all_handlers()}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name in ways:
            costs[name].append(cost(handlers[name], given.messages, envelope.new_key))
    print(f"{given.database}, {given.messages} messages {given.rounds} times, median:")
    for name, found in costs.items():
        print(f"  {name:25} {statistics.median(found):6.0f} us a message")


def tasks(given: argparse.Namespace, folder: Path, settings: dict[str, Any]) -> None:
    server = Server("real", "nsqd").start()
    APPS.append("gnsqsync.django.tasks")
    try:
        set_up(settings, "{}:{}".format(*server.tcp_address))
        run_tasks(given)
    finally:
        from gnsqsync.django.writers import close_writers

        close_writers()
        server.discard()


def run_tasks(given: argparse.Namespace) -> None:
    from django.tasks.base import Task
    from django.test import override_settings

    from gnsqsync.django.tasks.results import Request
    from gnsqsync.django.tasks.worker import handlers_of_topic
    from tests.bench import django_task

    def entry(**options: Any) -> dict[str, Any]:
        return {"default": {"BACKEND": "gnsqsync.django.tasks.NsqBackend", "OPTIONS": options}}

    ways: dict[str, dict[str, Any]] = {
        "no results": {"results": False},
        "results": {},
        "results, outbox": {"outbox": True},
        "results, once": {"once": True},
    }
    print(f"{given.database}, {given.messages} tasks {given.rounds} times, median:")
    answers: Any = Answers()
    for name, options in ways.items():
        enqueued, called = [], []
        with override_settings(TASKS=entry(**options)):
            nothing: Task[Any, Any] = django_task.nothing
            (handler,) = handlers_of_topic("tasks.default")
            for _ in range(given.rounds):
                began = time.monotonic()
                results = [nothing.enqueue(number) for number in range(given.messages)]
                enqueued.append((time.monotonic() - began) / given.messages * 1e6)
                messages = [
                    Message(b"0" * 16, Request.of(result).encode().encode(), 1, 0, answers)
                    for result in results
                ]
                began = time.monotonic()
                for message in messages:
                    handler(message)
                called.append((time.monotonic() - began) / given.messages * 1e6)
        enqueue, call = statistics.median(enqueued), statistics.median(called)
        print(f"  {name:25} enqueue {enqueue:6.0f} us, call {call:6.0f} us")


def cost(handler: Any, messages: int, new_key: Callable[[], str]) -> float:
    """Microseconds of a message."""
    answers: Any = Answers()
    several = [Message(b"0" * 16, b"x", 1, 0, answers) for _ in range(messages)]
    for message in several:
        message._headers = {"key": new_key()}
    began = time.monotonic()
    for message in several:
        handler(message)
    return (time.monotonic() - began) / messages * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["relay", "inbox", "tasks"])
    parser.add_argument("--database", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        database(given.database, Path(folder)) as settings,
    ):
        ways = {"relay": relay, "inbox": inbox, "tasks": tasks}
        ways[given.what](given, Path(folder), settings)


if __name__ == "__main__":
    main()
