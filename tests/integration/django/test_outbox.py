"""The outbox on each database: nothing committed is lost, nothing else is published."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from functools import partial

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, envelope
from tests.integration.conftest import address
from tests.integration.django.conftest import (
    ON_BOTH,
    ON_EACH,
    ON_POSTGRES,
    Command,
    Database,
    PostgresDatabase,
    Project,
    SqliteDatabase,
)
from tests.support.servers import Server, Site

ROWS = 10_000
EMPTY = {"waiting": 0, "failed": 0, "oldest_seconds": 0.0, "scheduled": 0}
# Transactions of a hundred rows; each third of them is rolled back.
FILL = """
import os, sys
from django.db import transaction
from gnsqsync.django import outbox

topic = os.environ["SHOP_TOPIC"]
for start in range(0, int(os.environ["SHOP_ROWS"]), 100):
    with transaction.atomic():
        outbox.publish_many(topic, [str(n) for n in range(start, start + 100)])
    if start % 300 == 0:
        try:
            with transaction.atomic():
                outbox.publish_many(topic, [f"never {n}" for n in range(start, start + 100)])
                raise ValueError
        except ValueError:
            pass
"""


@pytest.fixture
def nsqd(site: Site) -> Server:
    return site.nsqd()


class Outbox:
    """The project's, in its database."""

    def __init__(self, project: Project, **environment: str) -> None:
        self.project = project
        self._environment = environment
        project.migrate()

    def manage(self, *words: str, **environment: str) -> Command:
        return self.project.manage(*words, **self._environment, **environment)

    def fill(self, rows: int = ROWS) -> Command:
        (self.project.folder / "fill.py").write_text(FILL)
        return self.manage("shell", "-c", "import fill", SHOP_ROWS=str(rows))

    def relay(self, *words: str, **environment: str) -> Command:
        environment["SHOP_CONN_MAX_AGE"] = "null"
        return self.manage("nsq_relay", "--interval", "0.1", *words, **environment)

    def lag(self) -> dict[str, float]:
        output = self.manage("nsq_relay", "--lag", "--json").end()
        found: dict[str, float] = json.loads(output)
        return found

    def waiting(self) -> int:
        """Return how many rows there are; ``lag`` asks the command itself."""
        query = "SELECT count(*) FROM gnsqsync_outbox_outboxmessage"
        ((rows,),) = self.project.database.ask(query)
        return int(rows)

    def published(self) -> int:
        return int(self.project.topic_stats().message_count)

    def bodies(self) -> Counter[bytes]:
        """Everything that nsqd has of the topic, and how often."""
        total, found = self.published(), Counter[bytes]()
        complete = threading.Event()

        def take(message: Message) -> None:
            found[message.body] += 1
            if found.total() == total:
                complete.set()

        with Reader(
            self.project.topic,
            "count",
            take,
            nsqd_tcp_addresses=address(self.project.nsqd),
            max_in_flight=1000,
        ):
            assert complete.wait(60), found.total()
        return found


@pytest.fixture
def outbox(project: Project) -> Outbox:
    return Outbox(project)


# The real nsqd only: what is to be shown is that none of its messages is missing.
@ON_EACH
@pytest.mark.timeout(500)  # ten thousand rows, six programs
@pytest.mark.parametrize("server_kind", ["real"])
def test_a_relay_that_is_killed_loses_and_invents_nothing(outbox: Outbox) -> None:
    outbox.project.make_channel("count")
    outbox.fill().end()
    # At the two worst moments, as it dies by itself then; and at some moment.
    for moment in ("before 11", "after 11"):
        outbox.relay(SHOP_KILL=moment).process.wait(120)
    # The eleventh batch of the second relay is in nsqd, and still in the table.
    assert (outbox.published(), outbox.lag()["waiting"]) == (2100, ROWS - 2000)
    relay = outbox.relay()
    relay.eventually(lambda: outbox.published() >= 5000)
    os.kill(relay.process.pid, signal.SIGKILL)
    relay.process.wait()
    assert 0 < outbox.lag()["waiting"] <= ROWS - 4800
    outbox.relay("--once").end()
    assert outbox.lag() == EMPTY
    bodies = outbox.bodies()
    assert set(bodies) == {b"%d" % n for n in range(ROWS)}
    assert 100 <= bodies.total() - ROWS <= 200
    assert max(bodies.values()) <= 2


# The real nsqd only, whose files are another matter.
@ON_BOTH
@pytest.mark.parametrize("server_kind", ["real"])
@pytest.mark.parametrize(
    ("flags", "left"),
    [((), 0), (("-mem-queue-size=0", "-sync-every=1"), 300)],
    ids=["as usual", "on disk"],
)
def test_relayed_messages_are_as_safe_as_nsqd_keeps_them(
    project: Project, site: Site, flags: tuple[str, ...], left: int
) -> None:
    """The outbox has forgotten it; a killed nsqd forgets what it had in its memory."""
    project.nsqd = site.own_nsqd(*flags)
    outbox = Outbox(project)
    project.make_channel("count")
    outbox.fill(300).end()
    outbox.relay("--once").end()
    assert outbox.lag()["waiting"] == 0

    def depths() -> tuple[int, int]:
        with NsqdHTTP(project.nsqd.http_address) as http:
            (topic,) = http.stats(project.topic).topics
            return topic.depth, topic.channels[0].depth

    # One that is on its way from the topic to the channel would be lost in both cases.
    site.eventually(lambda: depths() == (0, 300))
    project.nsqd.kill()
    project.nsqd.start()
    site.eventually(lambda: depths() == (0, left))


@ON_EACH
@pytest.mark.parametrize("server_kind", ["embedded"])
def test_relays_beside_each_other_and_beside_those_who_write(
    outbox: Outbox, database: Database
) -> None:
    several = not isinstance(database, SqliteDatabase)
    outbox.project.make_channel("count")
    relays = [outbox.relay("--batch", "20") for _ in range(3 if several else 1)]
    rows = 600
    fill = outbox.fill(rows)
    relays[0].eventually(lambda: outbox.published() >= rows)
    fill.end()
    for relay in relays:
        # One may have begun only just now, as the others did all.
        relay.eventually(partial(relay.handles, signal.SIGTERM))
        relay.signal(signal.SIGTERM)
    shares = [int(relay.end().rsplit("\n", 2)[1].split()[0]) for relay in relays]
    assert sum(shares) == rows
    assert outbox.waiting() == 0
    assert outbox.bodies() == {b"%d" % n: 1 for n in range(rows)}


@ON_BOTH
@pytest.mark.parametrize("server_kind", ["embedded"])
def test_nsqd_is_away_for_a_while(project: Project, site: Site) -> None:
    project.nsqd = site.own_nsqd()
    outbox = Outbox(project, SHOP_OPTIONS='{"publish_timeout": 0.3}')
    project.make_channel("count")
    project.nsqd.kill()
    outbox.fill(300).end()
    assert "300 still wait, 0 have failed" in outbox.relay("--once").end(1)
    relay = outbox.relay()
    relay.wait_for("trying again in")
    project.nsqd.start()
    project.make_channel("count")
    # On a busy machine nsqd may answer too late, and then has some of them twice.
    relay.eventually(lambda: outbox.published() >= 300 and not outbox.waiting())
    relay.signal(signal.SIGTERM)
    relay.end()
    assert set(outbox.bodies()) == {b"%d" % n for n in range(300)}


@ON_POSTGRES
@pytest.mark.parametrize("server_kind", ["embedded"])
def test_the_database_is_restarted(
    outbox: Outbox, project: Project, database: PostgresDatabase
) -> None:
    """Under the relay, and under nsq_consume between two messages; then 300 of them."""
    project.make_channel("shop")

    def stored() -> int:
        return len(project.orders())

    def order(number: int) -> None:
        body = f"""outbox.publish("{project.topic}", '{{"number": {number}}}')"""
        project.shell(f"from gnsqsync.django import outbox; {body}")

    relay = outbox.relay()
    consumer = outbox.manage("nsq_consume", "store_order", SHOP_CONN_MAX_AGE="null")
    order(0)
    consumer.eventually(lambda: stored() == 1)
    # The relay would publish a row again that it has not deleted.
    relay.eventually(lambda: not outbox.waiting())
    database.stop()
    relay.wait_for("trying again in")
    database.start()
    order(1)
    consumer.eventually(lambda: stored() == 2)
    project.publish(*(f'{{"number": {n}}}' for n in range(2, 300)))
    most = 0
    while stored() < 300:
        most = max(most, database.connections(consumer))
        assert consumer.process.poll() is None, consumer.output
    # As many as handler threads.
    assert 0 < most <= 4
    for command in (relay, consumer):
        command.signal(signal.SIGTERM)
    assert "2 published" in relay.end()
    assert "300 finished" in consumer.end()


# Rows of the first version, in its table and, until its last process has ended, in ours.
OLD_ROWS = """
import datetime, os
from django.core.management import call_command
from django.db import connection

now = datetime.datetime.now(datetime.timezone.utc)
later = now + datetime.timedelta(hours=1)
columns = "alias, topic, body, deliver_at, created_at, attempts, retry_at, failed_at, last_error"

def write():
    for body, deliver_at in ((b"plain", None), (b"due", now), (b"deferred", later)):
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO gnsqsync_outbox_outboxmessage ({columns})"
                " VALUES ('default', %s, %s, %s, %s, 0, %s, NULL, '')",
                [os.environ["SHOP_TOPIC"], body, deliver_at, now, now],
            )

call_command("migrate", "gnsqsync_outbox", "0001", verbosity=0)
write()
call_command("migrate", verbosity=0)
write()
"""


@ON_EACH
def test_rows_of_the_first_version_are_published(outbox: Outbox) -> None:
    outbox.project.make_channel("count")
    outbox.project.shell(OLD_ROWS)
    outbox.relay("--once", SHOP_OPTIONS='{"headers": true}').end()
    lag = outbox.lag()
    assert (lag["waiting"], lag["failed"], lag["scheduled"]) == (0, 0, 2)
    envelopes = [envelope.decode(body) for body in outbox.bodies()]
    assert all(envelopes)
    assert Counter(body for _, body in envelopes if body) == Counter({b"plain": 2, b"due": 2})
    keys = {headers["key"] for headers, _ in envelopes}
    assert len(keys) == 4


def test_a_database_that_there_is_not_is_wrong_usage(project: Project) -> None:
    for words in ((), ("--lag",), ("--once",)):
        command = project.manage("nsq_relay", "--database", "nope", *words)
        assert command.process.wait(60) == 2


def test_an_interval_that_is_no_number_is_wrong(project: Project) -> None:
    says = "--interval is nan; it must be seconds, above 0"
    assert says in project.manage("nsq_relay", "--interval", "nan").end(1)
