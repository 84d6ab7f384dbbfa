"""manage.py nsq_consume, nsq_publish and nsq_stat as processes, against an nsqd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import pytest
import requests

from tests.integration.django.conftest import ON_BOTH, ON_EACH, Project
from tests.support.measured import measured
from tests.support.servers import Server, Site
from tests.support.waiting import eventually

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


@ON_EACH
@pytest.mark.timeout(300)
def test_the_tests_of_the_project(project: Project) -> None:
    """Settings, checks, publishing, the memory backend, connections: see project/shop/tests.py."""
    # The coverage tool has warnings of its own.
    words = measured() or ["-W", "error"]
    tests = project.run("python", *words, "manage.py", "test", "--noinput", SHOP_NSQD="127.0.0.1:1")
    output = tests.end(timeout=110)
    assert "\nOK" in output and "Ran 0" not in output


FORK = """
import os
from gnsqsync.django import get_writer, publish
publish(os.environ["SHOP_TOPIC"], "parent")
before = get_writer()
pid = os.fork()
publish(os.environ["SHOP_TOPIC"], "child" if not pid else "parent again")
assert get_writer() is before
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_writer_over_a_fork(project: Project) -> None:
    (project.folder / "fork.py").write_text(FORK)
    # Python 3.12 and later dislike a fork beside threads, as servers do it.
    project.make_channel("forks")
    project.manage(
        "shell", "-c", "import warnings; warnings.simplefilter('ignore'); import fork"
    ).end()
    assert project.channel("forks").depth == 3


@pytest.mark.parametrize("server_kind", ["real"])
class TestOnTheRealServer:
    """All others are on the embedded one."""

    @pytest.fixture
    def nsqd(self, site: Site) -> Server:
        return site.nsqd()

    @ON_BOTH
    def test_published_consumed_and_shown(self, project: Project) -> None:
        project.migrate()
        project.make_channel("shop")
        bodies = [f'{{"number": {n}}}' for n in range(30)]
        assert "30 published" in project.manage("nsq_publish", project.topic, *bodies).end()
        command = project.manage("nsq_consume", "store_order")
        command.wait_for(f"shop.store_order consumes {project.topic}/shop")
        command.eventually(lambda: len(project.orders()) == 30)
        command.signal(TERM)
        output = command.end()
        assert "shop.store_order: 30 finished, 0 requeued, 0 given up" in output
        assert output.endswith("stopped\n")
        stat = json.loads(project.manage("nsq_stat", project.topic, "--json").end())
        shop = {"depth": 0, "in_flight": 0, "deferred": 0, "messages": 30, "clients": 0, "ready": 0}
        assert stat == {
            "topics": {project.topic: {"depth": 0, "messages": 30, "channels": {"shop": shop}}},
            "failures": [],
        }
        table = project.manage("nsq_stat", project.topic).end().splitlines()
        assert table[2].split() == [f"{project.topic}/shop", "0", "0", "0", "30", "0", "0"]


def test_publish_reads_lines_and_defers(project: Project) -> None:
    project.make_channel("shop")
    assert "0 published" in project.manage("nsq_publish", project.topic).end()
    assert (
        "2 published"
        in project.manage("nsq_publish", project.topic, "a", "b", "--defer", "600").end()
    )
    assert project.channel("shop").deferred_count == 2


def test_stat_without_an_answer_fails(project: Project) -> None:
    output = project.manage("nsq_stat", SHOP_NSQD_HTTP="127.0.0.1:1").end(1)
    assert "127.0.0.1:1" in output
    output = project.manage("nsq_stat", "nobody").end(1)
    assert "no such topic 'nobody' on 1 nsqd" in output


def test_the_doctor_says_why_messages_wait(project: Project) -> None:
    project.make_channel("shop")
    project.publish("1", "2")
    words = ("nsq_doctor", project.topic, "--seconds", "0.2")
    output = project.manage(*words).end(1)
    assert f"{project.topic}/shop: No consumer is connected to the channel; 2 messages" in output
    assert "CommandError: something is wrong" in output
    output = project.manage("nsq_doctor", "nobody", "--seconds", "0.2").end(1)
    assert "No nsqd has the topic nobody" in output


# -- the stop ------------------------------------------------------------------------------------


def test_the_shutdown_timeout(project: Project) -> None:
    project.make_channel("slow")
    project.publish("1")
    command = project.manage(
        "nsq_consume", "shop.slowly", "--shutdown-timeout", "0.3", SHOP_SECONDS="60"
    )
    command.eventually(lambda: project.notes("begun"))
    command.signal(TERM)
    assert "1 handler at work" in command.end(1)


def test_a_reader_that_ends_by_itself(project: Project) -> None:
    command = project.manage(
        "nsq_consume", "slowly", "mail.version", SHOP_OPTIONS='{"snappy": true, "tls": true}'
    )
    output = command.end(1)
    assert "ended by itself: " in output and "TLS" in output


def test_wrong_settings_are_named_before_anything_starts(project: Project) -> None:
    output = project.manage("nsq_consume", SHOP_OPTIONS='{"publish_timout": 1}').end(1)
    assert "'publish_timout'" in output and "Did you mean 'publish_timeout'?" in output


# -- metrics -------------------------------------------------------------------------------------


def test_metrics_of_each_process_and_an_observer_of_the_settings(project: Project) -> None:
    project.make_channel("process")
    project.publish(*map(str, range(20)))
    command = project.manage(
        *("nsq_consume", "shop.process", "--processes", "2", "--metrics-address", "0"),
        SHOP_OBSERVER="shop.observers.Noting",
    )

    def pages() -> list[str]:
        return re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", command.output)

    command.eventually(lambda: len(pages()) == 2)
    its = f'channel="process",topic="{project.topic}"'
    finished = (
        f'gnsqsync_messages_total{{channel="process",outcome="finished",topic="{project.topic}"}}'
    )

    def value(page: str, name: str) -> float:
        text = requests.get(page, timeout=60).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    command.eventually(lambda: sum(value(page, finished) for page in pages()) == 20)
    for page in pages():
        assert value(page, f"gnsqsync_connections{{{its}}}") == 1
        assert value(page, f"gnsqsync_max_in_flight{{{its}}}") == 1
        assert value(page, 'gnsqsync_writer_connections{writer="default"}') == 0
    assert project.notes("connected") == ["connected process"] * 2
    command.signal(TERM)
    output = command.end()
    assert "the observer's batch failed" in output
    assert output.count("it concerns nobody else") == output.count("ValueError")


def test_nsq_health_asks_nsq_consume(project: Project) -> None:
    command = project.manage("nsq_consume", "shop.process", "--metrics-address", "0")
    page = command.wait_for(r"metrics at (http://\S+)/metrics")[1]
    command.eventually(lambda: requests.get(f"{page}/readyz", timeout=60).status_code == 200)
    alive = project.manage("nsq_health", "--address", page)
    ready = project.manage("nsq_health", "--address", page, "--ready")
    assert alive.end() == f"{page}/livez: alive\n"
    assert ready.end() == f"{page}/readyz: ready\n"
    command.signal(TERM)
    command.end()
    wrong = {
        f"CommandError: {page}/livez: Connection refused": ["--address", page],
        "CommandError: the metrics address is 'x'; it must be PORT": ["--address", "x"],
        "CommandError: processes is 0; ": ["--processes", "0"],
    }
    commands = {text: project.manage("nsq_health", *words) for text, words in wrong.items()}
    for text, command in commands.items():
        assert text in command.end(1)
    limit = project.manage("nsq_consume", "shop.process", "--handler-limit", "5")
    assert "--handler-limit needs --metrics-address too" in limit.end(1)


def test_metrics_that_cannot_be_served(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        commands = {
            f"metrics at 127.0.0.1:{port}: Address already in use": project.manage(
                "nsq_consume", "slowly", "--metrics-address", str(port)
            ),
            "'here'; it must be PORT or HOST:PORT": project.manage(
                "nsq_consume", "slowly", "--metrics-address", "here"
            ),
            "['OBSERVER'] returned None": project.manage(
                "nsq_consume", "slowly", SHOP_OBSERVER="shop.observers:nobody"
            ),
            "No module named 'shop.wrong'": project.manage(
                "nsq_consume", "slowly", SHOP_OBSERVER="shop.wrong.nobody"
            ),
        }
        for text, command in commands.items():
            output = command.end(1)
            assert text in output and "Traceback" not in output


# -- the database --------------------------------------------------------------------------------


@ON_BOTH
def test_a_transaction_for_each_message(project: Project) -> None:
    project.migrate()
    project.make_channel("transaction")
    project.publish('{"number": 1}')
    command = project.manage("nsq_consume", "shop.in_a_transaction")
    command.eventually(lambda: project.orders())
    command.eventually(lambda: project.channel("transaction").in_flight_count == 0)
    command.signal(TERM)
    assert "1 finished, 1 requeued" in command.end()
    assert project.orders() == [(1, "attempt 2")]
    stat = json.loads(project.manage("nsq_stat", f"{project.topic}_stored", "--json").end())
    assert stat["topics"][f"{project.topic}_stored"]["messages"] == 1


HANGING = """
import os, time
from django.db import connections, transaction
from gnsqsync.django import nsq_handler
from shop.models import Order

@nsq_handler(
    os.environ["SHOP_TOPIC"], "hanging", time_limit=0.3, requeue_delay=0, max_backoff_duration=0
)
def hangs_in_a_transaction(message):
    if message.attempts == 1:
        # As if struck in the middle of the begin: nobody ends it.
        transaction.atomic().__enter__()
        while True:
            time.sleep(0.01)
    assert not connections["default"].in_atomic_block
    with transaction.atomic():
        Order.objects.create(number=message.json()["number"], worker="stored")
"""


@ON_BOTH
def test_a_transaction_that_a_time_limit_left_open(project: Project) -> None:
    """The next one must not be taken for a part of it, and vanish with it."""
    project.migrate()
    project.make_channel("hanging")
    project.publish('{"number": 1}', '{"number": 2}')
    (project.folder / "mail" / "nsq_handlers.py").write_text(HANGING)
    command = project.manage("nsq_consume", "mail.hangs_in_a_transaction")
    command.eventually(lambda: len(project.orders()) == 2)
    command.eventually(lambda: project.channel("hanging").in_flight_count == 0)
    command.signal(TERM)
    output = command.end()
    assert "2 finished, 2 requeued" in output
    assert output.count("TimeLimitExceeded: the handler ran longer than 0.3 s (time_limit)") == 2


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("patched", ["", "gevent"], ids=["threads", "patched"])
def test_several_processes(project: Project, patched: str) -> None:
    project.make_channel("process")
    project.publish(*map(str, range(2000)))
    command = project.manage("nsq_consume", "shop.process", "--processes", "2", SHOP_GEVENT=patched)

    def workers() -> set[int]:
        return {int(line.split()[1]) for line in project.notes("process")}

    command.eventually(lambda: len(workers()) == 2)
    assert command.process.pid not in workers()
    first, second = workers()
    os.kill(first, KILL)
    command.wait_for("was killed by SIGKILL; another one takes its place")
    command.eventually(lambda: len(workers()) == 3)
    # A terminal sends it to all of them; the children leave it to their parent.
    os.killpg(command.process.pid, INT)
    output = command.end()
    assert len(re.findall("^stopped$", output, re.MULTILINE)) == 2
    assert "Traceback" not in output
    channel = project.channel("process")
    # What the killed one had comes back after its timeout.
    assert channel.in_flight_count <= 1
    assert not os.path.exists(f"/proc/{second}")


def test_children_of_a_killed_parent_stop(project: Project) -> None:
    project.make_channel("process")
    project.publish(*map(str, range(2000)))
    command = project.manage("nsq_consume", "shop.process", "--processes", "2")
    command.eventually(lambda: len(set(project.notes("process"))) == 2)
    pids = {int(line.split()[1]) for line in project.notes("process")}
    os.kill(command.process.pid, KILL)
    command.process.wait()
    eventually(
        lambda: not any(os.path.exists(f"/proc/{pid}/cmdline") for pid in pids),
        describe=lambda: command.output,
    )
    assert "is gone; stopping" in command.output


def test_a_child_that_ends_by_itself_ends_all(project: Project) -> None:
    command = project.manage(
        "nsq_consume", "slowly", "--processes", "2", SHOP_OPTIONS='{"tls": true}'
    )
    output = command.end(1)
    assert "ended by itself with exit code 1; stopping" in output


def test_reload(project: Project) -> None:
    project.make_channel("version")
    handlers = project.folder / "shop" / "nsq_handlers.py"
    source = handlers.read_text()
    command = project.manage("nsq_consume", "mail.version", "--reload")
    command.wait_for("mail.version consumes")
    project.publish("a")
    command.eventually(lambda: project.notes("version") == ["version 1"])
    handlers.write_text(source.replace("version 1", "version 2"))
    command.wait_for("nsq_handlers.py changed; starting again(.|\n)*mail.version consumes")
    project.publish("b")
    command.eventually(lambda: project.notes("version 2"))
    handlers.write_text(source + "\nthis is no Python\n")
    command.wait_for("ended with exit code 1; waiting for a file to change")
    handlers.write_text(source.replace("version 1", "version 3"))
    command.wait_for("waiting for a file(.|\n)*mail.version consumes")
    project.publish("c")
    command.eventually(lambda: project.notes("version 3"))
    os.killpg(command.process.pid, INT)
    output = command.end()
    assert output.endswith("stopped\n")
