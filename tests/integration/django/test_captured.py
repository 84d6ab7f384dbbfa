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


@ON_BOTH
@pytest.mark.parametrize("workers", ["0", "2"], ids=["one", "xdist"])
def test_pytest_django(project: Project, listener: socket.socket, workers: str) -> None:
    pytest.importorskip("pytest_django")
    (project.folder / "test_functions.py").write_text(FUNCTIONS)
    words = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-n", workers]
    command = Program(
        [*words, "test_functions.py", "--ds", "settings"],
        project.folder,
        {"SHOP_NSQD": address_of(listener)},
    )
    try:
        assert "4 passed" in command.end(timeout=90)
    finally:
        command.kill()
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
