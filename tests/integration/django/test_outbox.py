"""The outbox on SQLite and PostgreSQL: nothing committed is lost, nothing else is published."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from functools import partial

import django
import pytest

from gnsqsync import Message, NsqdHTTP, Reader
from tests.integration.conftest import address
from tests.integration.django.conftest import Command, Project
from tests.support.postgres import Postgres
from tests.support.servers import Server, Site

ROWS = 10_000
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
    """The project's, on one kind of database."""

    def __init__(self, project: Project, environment: dict[str, str]) -> None:
        self.project = project
        self._environment = environment
        self.manage("migrate", "--run-syncdb", "-v0").end()

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


@pytest.fixture(params=["sqlite", "postgres"])
def outbox(project: Project, request: pytest.FixtureRequest) -> Outbox:
    if request.param == "sqlite":
        return Outbox(project, {})
    server = request.getfixturevalue("postgres")
    return Outbox(project, {"SHOP_POSTGRES": server.host})


# The real nsqd only: what is to be shown is that none of its messages is missing.
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
    assert outbox.lag() == {"waiting": 0, "failed": 0, "oldest_seconds": 0.0}
    bodies = outbox.bodies()
    assert set(bodies) == {b"%d" % n for n in range(ROWS)}
    assert 100 <= bodies.total() - ROWS <= 200
    assert max(bodies.values()) <= 2


# The real nsqd only, whose files are another matter.
@pytest.mark.parametrize("server_kind", ["real"])
@pytest.mark.parametrize(
    ("flags", "left"),
    [((), 0), (("-mem-queue-size=0", "-sync-every=1"), 300)],
    ids=["as usual", "on disk"],
)
def test_what_was_relayed_is_as_safe_as_nsqd_keeps_it(
    project: Project, site: Site, flags: tuple[str, ...], left: int
) -> None:
    """The outbox has forgotten it; a killed nsqd forgets what it had in its memory."""
    project.nsqd = site.own_nsqd(*flags)
    outbox = Outbox(project, {})
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


@pytest.mark.parametrize("server_kind", ["embedded"])
def test_relays_beside_each_other_and_beside_those_who_write(
    outbox: Outbox, request: pytest.FixtureRequest
) -> None:
    several = "postgres" in request.node.name
    outbox.project.make_channel("count")
    relays = [outbox.relay("--batch", "20") for _ in range(3 if several else 1)]
    fill = outbox.fill(2000)
    relays[0].eventually(lambda: outbox.published() >= 2000)
    fill.end()
    for relay in relays:
        # One may have begun only just now, as the others did all.
        relay.eventually(partial(relay.handles, signal.SIGTERM))
        relay.signal(signal.SIGTERM)
    shares = [int(relay.end().rsplit("\n", 2)[1].split()[0]) for relay in relays]
    assert sum(shares) == 2000
    assert outbox.lag()["waiting"] == 0
    bodies = outbox.bodies()
    assert set(bodies) == {b"%d" % n for n in range(2000)}
    assert bodies.total() == 2000


@pytest.mark.parametrize("server_kind", ["embedded"])
def test_nsqd_is_away_for_a_while(project: Project, site: Site) -> None:
    project.nsqd = site.own_nsqd()
    outbox = Outbox(project, {"SHOP_OPTIONS": '{"publish_timeout": 0.3}'})
    project.make_channel("count")
    project.nsqd.kill()
    outbox.fill(300).end()
    assert "300 still wait, 0 have failed" in outbox.relay("--once").end(1)
    relay = outbox.relay()
    relay.wait_for("trying again in")
    project.nsqd.start()
    project.make_channel("count")
    # On a busy machine nsqd may answer too late, and then has some of them twice.
    relay.eventually(lambda: outbox.published() >= 300 and not outbox.lag()["waiting"])
    relay.signal(signal.SIGTERM)
    relay.end()
    assert set(outbox.bodies()) == {b"%d" % n for n in range(300)}


@pytest.mark.parametrize("server_kind", ["embedded"])
def test_the_database_is_restarted(project: Project, postgres: Postgres) -> None:
    """Under the relay, and under nsq_consume between two messages; then a thousand of them."""
    import psycopg

    outbox = Outbox(project, {"SHOP_POSTGRES": postgres.host})
    project.make_channel("shop")

    def ask(query: str, *values: object) -> int:
        with psycopg.connect(host=postgres.host, user="postgres", dbname="postgres") as database:
            row = database.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])

    def stored() -> int:
        return ask("SELECT count(*) FROM shop_order WHERE number >= 1000000")

    def order(number: int) -> None:
        body = f"""outbox.publish("{project.topic}", '{{"number": {number}}}')"""
        outbox.manage("shell", "-c", f"from gnsqsync.django import outbox; {body}").end()

    relay = outbox.relay()
    consumer = outbox.manage(
        "nsq_consume", "store_order", SHOP_CONN_MAX_AGE="null", PGAPPNAME="consumer"
    )
    order(1_000_000)
    consumer.eventually(lambda: stored() == 1)
    postgres.stop()
    relay.wait_for("trying again in")
    postgres.start()
    order(1_000_001)
    consumer.eventually(lambda: stored() == 2)
    project.publish(*(f'{{"number": {n}}}' for n in range(1_000_002, 1_001_000)))
    most = 0
    while stored() < 1000:
        most = max(
            most,
            ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", "consumer"),
        )
        assert consumer.process.poll() is None, consumer.output
    # As many as handler threads.
    assert 0 < most <= 4
    for command in (relay, consumer):
        command.signal(signal.SIGTERM)
    assert "2 published" in relay.end()
    assert "1000 finished" in consumer.end()


@pytest.mark.skipif(django.VERSION < (5, 1), reason="Django has pools since 5.1")
@pytest.mark.parametrize("server_kind", ["embedded"])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_pool_of_connections(project: Project, postgres: Postgres, processes: str) -> None:
    """Each process has a pool of its own, whatever its parent had; none is left at the end."""
    import psycopg

    outbox = Outbox(project, {"SHOP_POSTGRES": postgres.host})
    project.make_channel("shop")
    project.publish(*(f'{{"number": {n}}}' for n in range(2_000_000, 2_000_200)))
    name = f"pool {project.topic}"
    consumer = outbox.manage(
        *("nsq_consume", "store_order", "--processes", processes, "--max-in-flight", "4"),
        SHOP_POOL="yes",
        PGAPPNAME=name,
    )
    with psycopg.connect(
        host=postgres.host, user="postgres", dbname="postgres", autocommit=True
    ) as database:

        def stored() -> list[tuple[int, int]]:
            """Worker process and number of orders."""
            return database.execute(
                "SELECT split_part(worker, ' ', 1)::int, count(*) FROM shop_order"
                " WHERE number >= 2000000 GROUP BY 1"
            ).fetchall()

        def sessions() -> int:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            row = database.execute(query, [name]).fetchone()
            assert row is not None
            return int(row[0])

        consumer.eventually(lambda: sum(count for _, count in stored()) == 200)
        assert 1 <= len(stored()) <= int(processes)
        assert sessions() <= 4 * int(processes)
        consumer.signal(signal.SIGTERM)
        assert "Traceback" not in consumer.end()
        assert sessions() == 0
        database.execute("DELETE FROM shop_order WHERE number >= 2000000")


def test_a_database_that_there_is_not_is_wrong_usage(project: Project) -> None:
    for words in ((), ("--lag",), ("--once",)):
        command = project.manage("nsq_relay", "--database", "nope", *words)
        assert command.process.wait(60) == 2


def test_an_interval_that_is_no_number_is_wrong(project: Project) -> None:
    assert "--interval must be above 0" in project.manage("nsq_relay", "--interval", "nan").end(1)
