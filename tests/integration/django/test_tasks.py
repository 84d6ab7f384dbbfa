"""gnsqsync.django.tasks: the command as a process, and Django's own tests of tasks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

from tests.integration.django.conftest import IN_BOTH_WORLDS, Project
from tests.support.needs import missing
from tests.support.realnsq import cache_folder
from tests.support.servers import Server, Site
from tests.support.texts import ROOT

pytestmark = pytest.mark.skipif(
    django.VERSION < (6,), reason="Django has tasks since version 6, on Python 3.12 and later"
)

TERM = signal.SIGTERM
STORED = "SELECT status FROM gnsqsync_tasks_storedresult WHERE task = "


@pytest.fixture
def nsqd(site: Site) -> Server:
    """An nsqd for one test alone: all projects have the same queues."""
    return site.own_nsqd()


def enqueue(project: Project, code: str, **environment: str) -> str:
    """Run it in a process of the project; what it prints."""
    lines = f"from shop import tasks\n{code}"
    return project.manage("shell", "--no-imports", "-c", lines, **environment).end()


def statuses(project: Project, task: str) -> list[str]:
    return [status for (status,) in project.database.ask(f"{STORED}'shop.tasks.{task}'")]


@IN_BOTH_WORLDS
def test_they_are_called_and_known(project: Project, gevent: bool) -> None:
    project.migrate()
    environment = {"SHOP_GEVENT": "1"} if gevent else {}
    worker = project.manage("nsq_tasks", "--concurrency", "4", **environment)
    worker.wait_for("tasks.default consumes tasks.default/tasks")
    worker.wait_for("tasks.mail consumes tasks.mail/tasks")
    code = "for number in range(20): tasks.pack.enqueue(number)\n"
    code += "tasks.think.enqueue(1)\ntasks.fail.enqueue('no')\n"
    code += "print(tasks.greet.enqueue('Ann').id)"
    id = enqueue(project, code).split()[-1]
    worker.eventually(lambda: len(project.orders()) == 20)
    worker.eventually(lambda: statuses(project, "pack") == ["SUCCESSFUL"] * 20)
    worker.eventually(lambda: statuses(project, "greet") == ["SUCCESSFUL"])
    worker.eventually(lambda: statuses(project, "fail") == ["FAILED"])
    if gevent:
        worker.wait_for("the task shop.tasks.think is a coroutine, which gevent cannot run")
    else:
        worker.eventually(lambda: statuses(project, "think") == ["SUCCESSFUL"])
    assert enqueue(project, f"print(tasks.greet.get_result('{id}').return_value)") == "Hello, Ann\n"
    worker.signal(TERM)
    output = worker.end()
    if not gevent:
        assert "tasks.default: 22 finished, 0 requeued, 0 given up" in output
    assert "(shop.tasks.fail) has failed\nTraceback" in output and "ValueError: no" in output
    pruned = project.manage("nsq_tasks", "--prune", "0.0000001").end()
    assert pruned == f"{22 if gevent else 23} results deleted\n"


def test_a_worker_that_is_killed_loses_no_task(project: Project) -> None:
    project.migrate()
    options = '{"reader": {"msg_timeout": 1.0}}'
    environment = {"SHOP_TASK_OPTIONS": options}
    killed = project.manage("nsq_tasks", **environment)
    killed.wait_for("consumes")
    enqueue(project, "tasks.slow.enqueue(2)")
    killed.eventually((project.folder / "begun").exists)
    assert statuses(project, "slow") == ["RUNNING"]
    killed.kill()
    other = project.manage("nsq_tasks", **environment)
    # It takes longer than the message's timeout, and is not called a third time.
    other.eventually(lambda: statuses(project, "slow") == ["SUCCESSFUL"])
    other.signal(TERM)
    assert "tasks.default: 1 finished, 0 requeued" in other.end()


def test_run_after_goes_through_the_relay(project: Project) -> None:
    project.migrate()
    worker = project.manage("nsq_tasks", "default")
    relay = project.manage("nsq_relay", "--interval", "0.1")
    code = "from datetime import timedelta\nfrom django.utils import timezone\n"
    code += "due = timezone.now() + timedelta(seconds=2)\n"
    code += "tasks.pack.using(run_after=due).enqueue(7)"
    enqueue(project, code)
    worker.eventually(lambda: statuses(project, "pack") == ["SUCCESSFUL"])
    query = "SELECT run_after, started_at FROM gnsqsync_tasks_storedresult"
    ((due, started),) = project.database.ask(query)
    assert due <= started
    for command in (worker, relay):
        command.signal(TERM)
        command.end()


def test_arguments_that_the_command_refuses(project: Project) -> None:
    for words, says in (
        (["letters"], "no queue is called 'letters'; there are default, mail"),
        (["--backend", "other"], "--backend is 'other'; there are default"),
        (["--prune", "-1"], "--prune must be above 0"),
    ):
        assert says in project.manage("nsq_tasks", *words).end(1)
    listed = project.manage("nsq_tasks", "mail", "--list").end()
    assert "tasks.mail" in listed and "tasks.default" not in listed
    immediate = {"SHOP_TASKS": "django.tasks.backends.immediate.ImmediateBackend"}
    says = "no entry of TASKS has the backend gnsqsync.django.tasks.NsqBackend"
    assert says in project.manage("nsq_tasks", **immediate).end(1)


def test_a_project_moves_over_by_its_settings(project: Project) -> None:
    """First Django's immediate backend, then ours: the same code has the same effects."""
    project.migrate()
    code = "for number in range({0}, {0} + 5): tasks.pack.enqueue(number)"
    immediate = {"SHOP_TASKS": "django.tasks.backends.immediate.ImmediateBackend"}
    enqueue(project, code.format(0), **immediate)
    assert len(project.orders()) == 5 and statuses(project, "pack") == []
    enqueue(project, code.format(5))
    assert len(project.orders()) == 5
    worker = project.manage("nsq_tasks")
    worker.eventually(lambda: sorted(n for n, _ in project.orders()) == list(range(10)))
    worker.signal(TERM)
    worker.end()


def test_each_message_ends_and_its_result_before_it(project: Project) -> None:
    """A state machine in project/shop/task_machine.py: no clock decides, and nobody waits."""
    tests = project.manage("test", "shop.task_machine", "--noinput", SHOP_NSQD="127.0.0.1:1")
    assert "\nOK" in tests.end(timeout=110)


# -- Django's own tests --------------------------------------------------------------------------

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = False
INSTALLED_APPS = ["gnsqsync.django", "gnsqsync.django.outbox", "gnsqsync.django.tasks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
GNSQSYNC = {"default": {"BACKEND": "memory"}}
"""
OURS = "gnsqsync.django.tasks.NsqBackend"
# What is about another backend, or about something that a backend may lack.
LEFT_OUT = {
    "test_tasks.TaskTestCase": {
        "test_using_priority": "NSQ has no priorities",
        "test_chained_using": "NSQ has no priorities",
        "test_invalid_priority": "NSQ has no priorities",
    },
    "test_dummy_backend.DummyBackendTestCase": {
        "test_refresh_result": "changes the list of the dummy backend",
        "test_refresh_result_async": "changes the list of the dummy backend",
        "test_clear": "empties the list of the dummy backend",
    },
    "test_dummy_backend.DummyBackendTransactionTestCase": {},
    "test_immediate_backend.ImmediateBackendTestCase": {
        "test_cannot_get_result": "ours has results",
        "test_cannot_refresh_result": "ours has results",
        "test_cannot_pass_run_after": "ours has run_after",
    },
    "test_immediate_backend.ImmediateBackendTransactionTestCase": {},
}
RUN = """
import importlib, sys, types
from django.test import TestCase
sys.argv = ["manage.py", "test", "tasks", "--noinput"]
import django
django.setup()
for place, names in LEFT_OUT.items():
    module, case = place.split(".")
    found = getattr(importlib.import_module("tasks." + module), case)
    for name in names:
        delattr(found, name)
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


def source_of_django() -> Path:
    """The folder of its tests of tasks, from the source distribution of the version at hand."""
    name = f"django-{django.__version__}"
    folder = cache_folder().parent / name
    if not folder.exists():
        building = folder.with_name(f"{name}-{os.getpid()}")
        building.mkdir(parents=True)
        words = ["download", "-q", "--no-deps", "--no-binary", "django"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, f"django=={django.__version__}"],
            cwd=building,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            missing(OSError(f"no source of {name}: {done.stderr}"))
        (archive,) = building.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(building, filter="data")
        archive.unlink()
        try:
            building.rename(folder)
        except OSError:
            shutil.rmtree(building)  # another test run was first
    (found,) = folder.glob("*/tests/tasks")
    return found


def put(text: str, *changes: tuple[str, str]) -> str:
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count, pattern
    return text


# In coroutines, where a list may be asked, and a database may not.
NOT_ASYNC = r"from asgiref.sync import sync_to_async\n\g<0>"
MISSING = (r'([\w.]+\.get_result)\("123"\)', r'await sync_to_async(\1)("123")')
# By module: the backend that its tests are of, and what is about that backend only.
CHANGES = {
    "tasks": (
        "Dummy",
        [
            (r"self.assertEqual\(default_task_backend.results.*", ""),
            (r"from \. import tasks", NOT_ASYNC),
            (r"(?m)^        result\.refresh\(\)", "        await sync_to_async(result.refresh)()"),
            MISSING,
        ],
    ),
    "dummy_backend": (
        "Dummy",
        [
            (r"from \. import tasks", NOT_ASYNC),
            MISSING,
            (r"self.assertIn\(result, default_task_backend.results\)", ""),
            (r"self.assertEqual\(len\(default_task_backend.results\), 1\)", ""),
            ("available_apps = .*", ""),
        ],
    ),
    "immediate_backend": (
        "Immediate",
        [
            ("available_apps = .*", ""),
            (r"(?m)^class ", "@override_settings(GNSQSYNC=EAGER)\nclass "),
            (r"from \. import tasks", 'EAGER = {"default": {"BACKEND": "eager"}}\n\\g<0>'),
        ],
    ),
}


def test_djangos_own_tests_of_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    shutil.copytree(source_of_django(), folder)
    # About BaseTaskBackend and classes of its own.
    (folder / "test_custom_backend.py").unlink()
    for name, (kind, changes) in CHANGES.items():
        path = folder / f"test_{name}.py"
        module = rf"django\.tasks\.backends\.{kind.lower()}"
        clear = (r"(?m)^ +default_task_backend.clear\(\)$", "        pass")
        text = put(
            path.read_text(),
            (rf'"{module}\.{kind}Backend"', f'"{OURS}"'),
            (rf"from {module} import", "from gnsqsync.django.tasks import NsqBackend as"),
            (r"\bSimpleTestCase\b", "TestCase"),
            *([clear] if kind == "Dummy" else []),
            *changes,
        )
        path.write_text(text)
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "run.py").write_text(f"LEFT_OUT = {LEFT_OUT!r}\n{RUN}")
    here = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "\nOK" in done.stderr, done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None and int(ran[1]) >= 60, done.stderr
