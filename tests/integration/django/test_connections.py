"""How many connections to the database a consumer opens, and a web server under gevent.

PostgreSQL has few of them here, so that what opens one too many gets an error as in production.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import django
import pytest
import requests

from tests.integration.django.conftest import (
    ON_BOTH,
    ON_POSTGRES,
    Command,
    PostgresDatabase,
    Project,
)
from tests.support.postgres import MAX_CONNECTIONS
from tests.support.waiting import eventually

TOO_MANY = "too many clients already"
MORE = 2 * MAX_CONNECTIONS
# How many a pool opens.
POOL = 4
POOLED = {"SHOP_POOL": json.dumps({"min_size": 1, "max_size": POOL})}
WITH_POOLS = pytest.mark.skipif(django.VERSION < (5, 1), reason="Django has pools since 5.1")


# -- nsq_consume ---------------------------------------------------------------------------------


def consume(project: Project, count: int, *words: str, **environment: str) -> Command:
    """A consumer that gets so many orders."""
    project.migrate()
    project.make_channel("shop")
    project.publish(*(f'{{"number": {n}}}' for n in range(count)))
    return project.manage("nsq_consume", "store_order", *words, **environment)


def most_until_stored(project: Project, consumer: Command, count: int) -> int:
    """The highest number of connections until all orders are there."""
    seen = []

    def all_are_stored() -> bool:
        seen.append(project.database.connections(consumer))
        return project.database.ask("SELECT count(*) FROM shop_order")[0][0] == count

    # Often, as a connection may live for one message, and not all the time: it has to work, too.
    consumer.eventually(all_are_stored, pause=0.005)
    return max(seen)


@ON_BOTH
@pytest.mark.parametrize(
    ("patched", "age"),
    # Age 0 on threads is in the project's own tests; a connection for each message is slow.
    [pytest.param("", "null", id="threads"), ("gevent", "null"), ("gevent", "0")],
)
def test_no_more_connections_than_workers(project: Project, patched: str, age: str) -> None:
    count = 200 if age == "null" else 50
    consumer = consume(project, count, SHOP_CONN_MAX_AGE=age, SHOP_GEVENT=patched)
    # PostgreSQL lists a session for a moment after its end, so of each worker there may be two.
    most = 4 if age == "null" else 8
    assert 0 < most_until_stored(project, consumer, count) <= most
    # Greenlets change only where one waits, so a few messages may all come to one of them.
    workers = {worker for _, worker in project.orders()}
    assert 0 < len(workers) <= 4
    if age == "null":
        assert project.database.connections(consumer) == len(workers)
    else:
        consumer.eventually(lambda: project.database.connections(consumer) == 0)
    consumer.signal(signal.SIGTERM)
    assert f"{count} finished" in consumer.end()


@ON_POSTGRES
@pytest.mark.parametrize("age", ["null", "0"])
def test_more_greenlets_at_work_than_postgresql_allows(project: Project, age: str) -> None:
    """Each has a connection until its handler returns, whatever CONN_MAX_AGE says."""
    consumer = consume(
        *(project, MORE, "--concurrency", str(MORE)),
        SHOP_GEVENT="yes",
        SHOP_CONN_MAX_AGE=age,
        SHOP_PAUSE="0.5",
    )
    consumer.wait_for(TOO_MANY)


@WITH_POOLS
@ON_POSTGRES
def test_a_pool_serves_more_greenlets_than_postgresql_allows(project: Project) -> None:
    count = 3 * MORE
    consumer = consume(
        *(project, count, "--concurrency", str(MORE)),
        SHOP_GEVENT="yes",
        SHOP_PAUSE="0.05",
        **POOLED,
    )
    assert 0 < most_until_stored(project, consumer, count) <= POOL
    consumer.signal(signal.SIGTERM)
    assert f"{count} finished, 0 requeued" in consumer.end()
    # PostgreSQL notices the end of a process in its own time.
    eventually(lambda: project.database.connections(consumer) == 0)


@WITH_POOLS
@ON_POSTGRES
@pytest.mark.parametrize("processes", ["1", "2"])
def test_each_process_has_a_pool_of_its_own(project: Project, processes: str) -> None:
    """Whatever its parent had; and none is left at the end."""
    words = "--processes", processes, "--max-in-flight", "4"
    consumer = consume(project, 100, *words, **POOLED)
    most = most_until_stored(project, consumer, 100)
    assert 0 < most <= POOL * int(processes)
    pids = {worker.split()[0] for _, worker in project.orders()}
    assert 1 <= len(pids) <= int(processes)
    consumer.signal(signal.SIGTERM)
    assert "Traceback" not in consumer.end()
    eventually(lambda: project.database.connections(consumer) == 0)


# -- a web server, which has a greenlet for each client ------------------------------------------


class Website:
    """gunicorn on gevent. Clients keep their connections to it, as browsers and proxies do."""

    def __init__(self, project: Project, environment: dict[str, str], stack: ExitStack) -> None:
        project.migrate()
        self._stack = stack
        words = ["gunicorn", "-k", "gevent", "-w", "1", "--keep-alive", "60", "-b", "127.0.0.1:0"]
        self.server = project.run(
            *words,
            "django.core.wsgi:get_wsgi_application()",
            DJANGO_SETTINGS_MODULE="settings",
            GUNICORN_CMD_ARGS="--no-control-socket",
            **environment,
        )
        self._url = self.server.wait_for(r"Listening at: (\S+)")[1] + "/orders/"

    def answer(self, _: int = 0) -> int:
        """To a new client, who stays."""
        client = self._stack.enter_context(requests.Session())
        return client.get(self._url, timeout=60).status_code


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@ON_POSTGRES
def test_a_persistent_connection_for_each_client(
    project: Project, database: PostgresDatabase, stack: ExitStack
) -> None:
    import psycopg

    site = Website(project, {"SHOP_CONN_MAX_AGE": "60"}, stack)
    answers = [site.answer() for _ in range(MORE)]
    assert answers[0] == 200 and answers[-1] == 500
    assert answers.count(200) <= MAX_CONNECTIONS
    with pytest.raises(psycopg.OperationalError, match=TOO_MANY):
        database.connections(site.server)


@ON_POSTGRES
def test_without_persistent_connections_only_requests_have_one(
    project: Project, database: PostgresDatabase, stack: ExitStack
) -> None:
    site = Website(project, {"SHOP_CONN_MAX_AGE": "0"}, stack)
    for _ in range(MORE):
        assert site.answer() == 200
        # The answer may be here before its thread has closed the connection.
        site.server.eventually(lambda: database.connections(site.server) == 0)


@WITH_POOLS
@ON_POSTGRES
def test_a_pool_serves_more_requests_at_once_than_postgresql_allows(
    project: Project, database: PostgresDatabase, stack: ExitStack
) -> None:
    site = Website(project, POOLED, stack)
    with ThreadPoolExecutor(MORE) as clients:
        answers = [clients.submit(site.answer) for _ in range(3 * MORE)]
        most = 0
        while not all(answer.done() for answer in answers):
            most = max(most, database.connections(site.server))
    assert {answer.result() for answer in answers} == {200}
    assert 0 < most <= POOL
