"""README, docs and examples against the code: every program runs, the pages build."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import requests

import gnsqsync
from gnsqsync import NsqdHTTP, Writer
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support import readme
from tests.support.texts import DOCS, EXAMPLES, ROOT, code_blocks
from tests.support.waiting import LIMIT, eventually

# What the programs in the texts call an nsqd; here it is the one of the test.
USUAL_ADDRESS = "127.0.0.1:4150"

SETTINGS = """
SECRET_KEY = "for this test"
INSTALLED_APPS = ["gnsqsync.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "orders.sqlite"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True
"""
MODELS = """
from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
"""


# -- the programs run ----------------------------------------------------------------------------


@pytest.fixture
def nsqd(emptied_nsqd: Nsqd) -> Nsqd:
    return emptied_nsqd


class Program:
    """A running program of the texts; its output, and its end within a bounded time."""

    def __init__(self, arguments: Iterable[str], folder: Path, **environment: str) -> None:
        self._path = folder / "output"
        paths = os.pathsep.join([str(folder), str(ROOT)])
        with open(self._path, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": paths, **environment},
            )

    @property
    def output(self) -> str:
        return self._path.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, timeout: float = LIMIT) -> re.Match[str]:
        """Until its output has a match."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.output)
            if found is None:
                assert self._process.poll() is None, f"ended without {pattern!r}:\n{self.output}"
            return found

        found = eventually(look, timeout, describe=lambda: f"no {pattern!r} in:\n{self.output}")
        assert found is not None
        return found

    def end(self, number: int | None = None, timeout: float = LIMIT) -> str:
        """Its whole output after exit code 0, which signal ``number`` may have caused."""
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(timeout)
        assert code == 0, f"exit code {code}:\n{self.output}"
        return self.output

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


Run = Callable[..., Program]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a program in the test's own folder; what still runs at the end is killed."""
    programs: list[Program] = []

    def start(*arguments: str, **environment: str) -> Program:
        programs.append(Program(arguments, tmp_path, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture
def example(tmp_path: Path, nsqd: Nsqd) -> Callable[..., Path]:
    """Put an example where it can run, with the address of an nsqd in it."""

    def put(name: str, target: str = "", *, beside: Nsqd = nsqd) -> Path:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert USUAL_ADDRESS in text
        path = tmp_path / (target or name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(USUAL_ADDRESS, beside.tcp_address), encoding="utf-8")
        return path

    return put


def publish_orders(nsqd: Nsqd, count: int, topic: str = "orders") -> None:
    with Writer(nsqd.tcp_address) as writer:
        writer.publish_many(topic, [f'{{"number": {n}}}' for n in range(1, count + 1)])


def test_publish(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    assert "5 published" in run(str(example("publish.py"))).end()
    (topic,) = NsqdHTTP(nsqd.http_address).stats().topics
    assert (topic.topic_name, topic.message_count) == ("orders", 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_consume(run: Run, example: Callable[..., Path], nsqd: Nsqd, number: int) -> None:
    publish_orders(nsqd, 4)
    program = run(str(example("consume.py")))
    for order in ("1, attempt 1", "2, attempt 1", "3, attempt 2", "4, attempt 1"):
        program.wait_for(f"order {order}")
    output = program.end(number)
    assert "stopped; unanswered: 0, workers running: 0" in output
    assert "Traceback" not in output


def test_gevent_consumer(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 10)
    program = run(str(example("gevent_consumer.py")))
    for n in range(1, 11):
        program.wait_for(f'"number": {n}}}')
    program.end(signal.SIGTERM)


def test_asyncio_publish(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    program = run(str(example("asyncio_publish.py")))
    program.wait_for("101 orders confirmed")
    assert "Warning" not in program.end()


def test_batches(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 5)
    program = run(str(example("batches.py")))
    program.wait_for(r"storing \[.*\b5\b.*\]")
    program.end(signal.SIGTERM)
    (topic,) = NsqdHTTP(nsqd.http_address).stats().topics
    assert (topic.channels[0].depth, topic.channels[0].in_flight_count) == (0, 0)


def test_middleware(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    output = run(str(example("middleware.py"))).end()
    assert "[request 7] INFO order 1" in output
    assert re.search(r"^\[request 7\] INFO message [0-9a-f]{16} took 0\.\d{3} s$", output, re.M)
    assert "[-] INFO" in output


def test_long_job(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 3)
    program = run(str(example("long_job.py")))
    for n in range(1, 4):
        program.wait_for(f"rendered {n}")
    program.end(signal.SIGTERM)


def test_sqlalchemy_books(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    assert run(str(example("sqlalchemy_books.py"))).end().endswith("booked: ['17']\n")


def test_a_window_of_seconds(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    path = example("ordered_window.py")
    text = path.read_text(encoding="utf-8")
    assert "WINDOW = 2.0" in text
    # The three messages have to arrive within the window, also on a busy machine.
    path.write_text(text.replace("WINDOW = 2.0", "WINDOW = 5.0"), encoding="utf-8")
    with NsqdHTTP(nsqd.http_address) as http, Writer(nsqd.tcp_address) as writer:
        http.create_topic("orders")
        http.create_channel("orders", "ordered")
        program = run(str(path))

        def consumes() -> bool:
            (channel,) = http.stats("orders").topics[0].channels
            return sum(client.ready_count for client in channel.clients or ()) > 0

        eventually(consumes)
        writer.publish("orders", "b", defer=0.1)
        writer.publish_many("orders", ["a", "c"])
    # Published first, and delivered last.
    program.wait_for(r"b\na\nc\n")
    program.end(signal.SIGTERM)


def test_several_topics(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 2)
    publish_orders(nsqd, 3, "refunds")
    program = run(str(example("several_topics.py")))
    program.wait_for('"number": 3}')
    program.wait_for('(?s)(?:"number": 2}.*){2}')
    assert "connected 2 times, finished 5" in program.end(signal.SIGTERM)


def test_from_pynsq(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 4)
    program = run(str(example("from_pynsq.py")))
    for n in range(1, 5):
        program.wait_for(f"published a receipt for {n}")
    assert "Traceback" not in program.end(signal.SIGTERM)
    topics = {topic.topic_name: topic for topic in NsqdHTTP(nsqd.http_address).stats().topics}
    assert topics["receipts"].message_count == 4
    (channel,) = topics["orders"].channels
    assert (channel.depth, channel.in_flight_count, channel.requeue_count) == (0, 0, 1)


def test_from_gnsq(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    publish_orders(nsqd, 4)
    with Writer(nsqd.tcp_address) as writer:
        writer.publish("orders", '{"number": -1}')
    # Each needs the time of its backoff: about 2 s after the failure, and again.
    program = run(str(example("from_gnsq.py")))
    for n in range(1, 5):
        program.wait_for(f"published a receipt for {n}")
    program.wait_for('given up: {"number": -1}')
    program.end(signal.SIGTERM)
    topics = {topic.topic_name: topic for topic in NsqdHTTP(nsqd.http_address).stats().topics}
    assert topics["receipts"].message_count == 4
    (channel,) = topics["orders"].channels
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)


def test_topics_by_pattern(run: Run, tmp_path: Path) -> None:
    name = "topics_by_pattern.py"
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    with Nsqlookupd() as lookupd, Nsqd(lookupd_tcp_addresses=lookupd.tcp_address) as nsqd:
        assert "127.0.0.1:4161" in text
        (tmp_path / name).write_text(text.replace("127.0.0.1:4161", lookupd.http_address))
        publish_orders(nsqd, 1, "refunds")
        publish_orders(nsqd, 2, "orders_eu")
        publish_orders(nsqd, 3, "orders_us")
        program = run(str(tmp_path / name))
        program.wait_for('orders_eu {"number": 2}')
        program.wait_for('orders_us {"number": 3}')
        assert "refunds" not in program.end(signal.SIGTERM)


def test_embedded_in_tests(run: Run, tmp_path: Path) -> None:
    arguments = ["-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    arguments += ["-p", "no:cacheprovider", str(EXAMPLES / "embedded_in_tests.py")]
    output = run(*arguments).end(timeout=110)
    assert re.search(r"\b5 passed\b", output)
    assert "skipped" not in output


def test_sqlite_outbox(run: Run, example: Callable[..., Path], nsqd: Nsqd, tmp_path: Path) -> None:
    path = example("sqlite_outbox.py")
    output = run(str(path)).end()
    assert output.splitlines() == [
        "order 7 is there already, and leads to one message",
        "published 1",
    ]
    (topic,) = NsqdHTTP(nsqd.http_address).stats().topics
    assert (topic.topic_name, topic.message_count) == ("orders", 1)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\._[a-z]|import _", text), "an integration needs no private name"


def test_flask_app(run: Run, example: Callable[..., Path]) -> None:
    # The nsqd of the file would be missed by the other tests.
    with Nsqd() as nsqd:
        example("flask_app.py", beside=nsqd)
        program = run("-m", "flask", "--app", "flask_app", "run", "--port", "0")
        url = program.wait_for(r"Running on (http://127\.0\.0\.1:\d+)")[1]
        answer = requests.post(f"{url}/orders", json={"number": 7}, timeout=60)
        assert (answer.status_code, answer.json()) == (202, {"queued": True})
        (topic,) = NsqdHTTP(nsqd.http_address).stats().topics
        assert (topic.topic_name, topic.message_count) == ("orders", 1)
        nsqd.stop()
        answer = requests.post(f"{url}/orders", json={"number": 8}, timeout=60)
        assert answer.status_code == 503


def test_prometheus_metrics(run: Run, example: Callable[..., Path], nsqd: Nsqd) -> None:
    path = example("prometheus_metrics.py")
    text = path.read_text(encoding="utf-8")
    for given, here in (
        # A port that nobody else has, and which one it is.
        ("    start_http_server(9150", "    server, _ = start_http_server(0"),
        (
            "    reader.start()",
            '    print(f"port {server.server_port};", flush=True)\n    reader.start()',
        ),
    ):
        assert given in text
        text = text.replace(given, here)
    path.write_text(text, encoding="utf-8")
    publish_orders(nsqd, 3)
    program = run(str(path))
    port = program.wait_for(r"port (\d+);")[1]
    url = f"http://127.0.0.1:{port}/metrics"
    line = 'gnsqsync_published_messages_total{writer="default"} 3.0'
    eventually(lambda: line in requests.get(url, timeout=60).text)
    assert 'gnsqsync_rdy{channel="invoices"' in requests.get(url, timeout=60).text
    program.end(signal.SIGTERM)


def test_django_command(run: Run, example: Callable[..., Path], nsqd: Nsqd, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(MODELS)
    handlers = example("django_nsq_handlers.py", "shop/nsq_handlers.py").read_text()
    # The setting is the last line of its docstring.
    setting = handlers.split('"""')[1].splitlines()[-1]
    (tmp_path / "shop_settings.py").write_text(SETTINGS + setting)
    settings = {"DJANGO_SETTINGS_MODULE": "shop_settings"}
    run("-m", "django", "migrate", "--run-syncdb", **settings).end()
    publish_orders(nsqd, 3)
    count = "from shop.models import Order; print('stored', Order.objects.count())"
    command = run("-m", "django", "nsq_consume", **settings)
    command.wait_for("shop.store_order consumes orders/shop")
    with NsqdHTTP(nsqd.http_address) as http:

        def is_empty() -> bool:
            channels = http.stats("orders").topics[0].channels
            return bool(channels) and not (channels[0].depth or channels[0].in_flight_count)

        eventually(is_empty, describe=lambda: command.output)
    assert "3 finished, 0 requeued" in command.end(signal.SIGTERM)
    assert "stored 3" in run("-m", "django", "shell", "-c", count, **settings).end()


def test_every_example_has_a_test() -> None:
    folder = ROOT / "tests" / "integration" / "sqlalchemy"
    sqlalchemy = [folder / "test_flask_relay.py", folder / "test_keys.py"]
    spark = [ROOT / "tests" / "spark" / f"test_{name}.py" for name in ("avro", "examples", "sql")]
    health = ROOT / "tests" / "component" / "reader" / "test_health_example.py"
    tests = [Path(__file__), health, *spark, *sqlalchemy]
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {name for name in names if f'"{name}"' in text}


def test_every_example_is_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.rst"))
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == set(re.findall(r"\.\. literalinclude:: /examples/([^/\s]+)\s", text))


# -- the README ----------------------------------------------------------------------------------


def test_the_first_block_of_the_readme_is_two_commands() -> None:
    demo, tests = readme.commands()
    fresh = "python3 -m venv .venv && .venv/bin/pip install -q "
    assert demo.startswith(fresh) and demo.endswith("&& .venv/bin/gnsqsync demo")
    assert tests.startswith(fresh) and tests.endswith("&& .venv/bin/pytest")


def test_programs_of_the_readme_are_examples_that_run() -> None:
    blocks = code_blocks(ROOT / "README.rst", "python")
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")]
    assert len(blocks) >= 2
    for block in blocks:
        assert any(block.strip() in text for text in texts), block


def test_files_that_the_readme_names_exist() -> None:
    links = re.findall(r"<([\w./-]+)>`_", readme.README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", ["README.rst", "CHANGES.rst"])
def test_pages_outside_of_docs_are_plain_docutils(page: str) -> None:
    # As the package index renders them: without Sphinx's directives and roles.
    command = [sys.executable, "-m", "docutils", "--report=1", "--halt=2", "--strict"]
    done = subprocess.run([*command, page], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_the_changes_know_the_version() -> None:
    text = (ROOT / "CHANGES.rst").read_text(encoding="utf-8")
    first = re.search(r"^(\d+\.\d+\.\d+)\b", text, re.MULTILINE)
    assert first is not None
    assert first[1] == gnsqsync.__version__
