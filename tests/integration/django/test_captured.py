"""Tests of a project that forget to capture: no connection is made to the nsqd of its settings."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.integration.django.conftest import ON_BOTH, Project
from tests.support.programs import Program

# Says nothing of capturing. Two classes, so that two processes get one each.
TESTS = """
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from gnsqsync.django import get_writer, publish, publish_on_commit


class InATransaction(TestCase):
    def test_it(self):
        publish("orders", "1")
        assert [m.body for m in get_writer().messages] == [b"1"]


class Committing(TransactionTestCase):
    def test_it(self):
        with transaction.atomic():
            publish_on_commit("orders", "2")
        assert [m.body for m in get_writer().messages] == [b"2"]
"""
FUNCTIONS = """
import pytest
from django.db import transaction
from gnsqsync.django import get_writer, publish, publish_on_commit


@pytest.mark.parametrize("number", [1, 2])
def test_without_a_database(number):
    publish("orders", "x")
    assert len(get_writer().messages) == 1


@pytest.mark.django_db(transaction=True)
def test_committing():
    with transaction.atomic():
        publish_on_commit("orders", "2")
    assert [m.body for m in get_writer().messages] == [b"2"]


def test_a_view(live_server):
    from urllib.request import urlopen
    assert urlopen(f"{live_server}/publish/", timeout=10).read() == b"published"
    assert [m.body for m in get_writer().messages] == [b"from a view"]
"""

# Django loads it before its test runner, or pytest-django, says that these are tests.
EARLY = """
from gnsqsync.django import get_writer

writer = get_writer()
"""
KEPT = """
from django.test import SimpleTestCase, override_settings
from gnsqsync.django import get_writer
from gnsqsync.django.test import captured_messages
from mail.models import writer


class Kept(SimpleTestCase):
    def test_it(self):
        writer.connect()
        writer.ping()
        writer.publish("orders", "1")
        writer.publish_many("orders", ["2", "3"])
        writer.publish_async("orders", "4").result(0)
        with captured_messages() as messages:
            writer.publish("orders", "5")
        assert [m.body for m in messages] == [b"5"]
        with override_settings(GNSQSYNC={"default": {"BACKEND": "memory"}}):
            writer.publish("orders", "6")
            assert [m.body for m in writer.messages] == [b"6"]
        writer.publish("orders", "7")
        assert writer.is_connected and writer.stats().published == 5
        assert [m.body for m in get_writer().messages] == [b"1", b"2", b"3", b"4", b"7"]
        assert writer.messages is get_writer().messages

    def test_writers_that_a_module_keeps_are_captured(self):
        with captured_messages() as messages:
            inner = get_writer()
        during = get_writer()
        for kept in (inner, during):
            kept.publish("orders", "1")
        changed = override_settings(GNSQSYNC={"default": {"NSQD": "a"}})
        with captured_messages() as messages, changed:
            for kept in (inner, during):
                kept.publish("orders", "2")
        assert [m.body for m in messages] == [b"2", b"2"]
        assert [m.body for m in during.messages] == [b"1", b"1"]
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """In place of an nsqd."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def assert_nobody_came(listener: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        listener.accept()


@ON_BOTH
@pytest.mark.parametrize("parallel", [(), ("--parallel", "2")], ids=["one", "parallel"])
def test_the_runner_of_django(
    project: Project, listener: socket.socket, parallel: tuple[str, ...]
) -> None:
    (project.folder / "mail" / "tests.py").write_text(TESTS)
    output = project.manage(
        "test", "mail", "--noinput", *parallel, SHOP_NSQD=address_of(listener)
    ).end(timeout=90)
    assert "Ran 2 tests" in output and "\nOK" in output
    assert_nobody_came(listener)


def run_pytest(project: Project, listener: socket.socket, *words: str) -> str:
    """Run pytest in the project, as a new process: its plugins see a Python that has no imports."""
    pytest.importorskip("pytest_django")
    command = Program(
        ["python", "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", *words],
        project.folder,
        {"SHOP_NSQD": address_of(listener), "DJANGO_SETTINGS_MODULE": "settings"},
    )
    try:
        return command.end(timeout=90)
    finally:
        command.kill()


@ON_BOTH
@pytest.mark.parametrize("workers", ["0", "2"], ids=["one", "xdist"])
def test_pytest_django(project: Project, listener: socket.socket, workers: str) -> None:
    (project.folder / "test_functions.py").write_text(FUNCTIONS)
    assert "4 passed" in run_pytest(project, listener, "test_functions.py", "-n", workers)
    assert_nobody_came(listener)


@pytest.mark.parametrize("runner", ["django", "pytest"])
def test_a_writer_from_before_the_tests(
    project: Project, listener: socket.socket, runner: str
) -> None:
    (project.folder / "mail" / "models.py").write_text(EARLY)
    (project.folder / "mail" / "tests.py").write_text(KEPT)
    if runner == "django":
        output = project.manage("test", "mail", SHOP_NSQD=address_of(listener)).end(timeout=90)
        assert "Ran 2 tests" in output and "\nOK" in output
    else:
        assert "2 passed" in run_pytest(project, listener, "mail/tests.py", "-n", "0")
    assert_nobody_came(listener)


def test_a_setting_allows_a_real_nsqd(project: Project, listener: socket.socket) -> None:
    (project.folder / "mail" / "tests.py").write_text(
        "from django.test import SimpleTestCase\n"
        "from gnsqsync.django import publish\n"
        "class Real(SimpleTestCase):\n"
        "    def test_it(self):\n"
        "        publish('orders', 'x', timeout=0.5)\n"
    )
    settings = project.folder / "settings.py"
    settings.write_text(settings.read_text() + '\nGNSQSYNC["default"]["BACKEND"] = "nsq"\n')
    project.manage("test", "mail", "--noinput", SHOP_NSQD=address_of(listener)).end(1, timeout=90)
    listener.accept()[0].close()
