"""The guide to Django names every option and every key; its project is in test_quickstarts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnsqsync.django.config import KEYS
from gnsqsync.django.schedule import NEEDED
from tests.integration.django.conftest import ON_EACH, Project
from tests.support.texts import DOCS, files_of

GUIDE = DOCS / "guides" / "django.rst"
# Of every command of Django.
COMMON = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
COMMON |= {"--no-color", "--force-color", "--skip-checks"}


@pytest.mark.parametrize(
    ("command", "title", "next_title"),
    [
        ("nsq_consume", "manage.py nsq_consume", "nsq_publish, nsq_stat and nsq_doctor"),
        ("nsq_relay", "The outbox", "Tests"),
    ],
)
def test_every_option_of_a_command_is_in_the_guide(
    project: Project, command: str, title: str, next_title: str
) -> None:
    known = set(
        re.findall(r"^  (?:-\w, )?(--[\w-]+)", project.manage(command, "--help").end(), re.M)
    )
    text = GUIDE.read_text(encoding="utf-8")
    section = text.split(f"\n{title}\n")[1].split(f"\n{next_title}\n")[0]
    told = set(re.findall(r"``(--[\w-]+)``", section))
    assert told == known - COMMON


def test_every_key_of_the_settings_is_in_the_guide() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("\nSettings\n")[1].split("\nPublish\n")[0]
    assert tuple(re.findall(r"^``([A-Z_]+)``  ", section, re.MULTILINE)) == KEYS


def with_billing(project: Project, dependencies: str = "") -> None:
    """Add the app of the guide, which comes before ours in Django's order of apps."""
    (migration,) = files_of(DOCS / "guides" / "schedule.rst").items()
    for path in ("billing/__init__.py", "billing/migrations/__init__.py", migration[0]):
        (project.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / path).write_text("")
    with (project.folder / "settings.py").open("a") as settings:
        settings.write('\nINSTALLED_APPS.insert(0, "billing")\n')
    needs = f'[("{NEEDED[0]}", "{NEEDED[1]}")]'
    assert needs in migration[1]
    text = migration[1].replace(needs, dependencies or needs)
    (project.folder / migration[0]).write_text(text)


@ON_EACH
def test_the_migration_of_the_guide_works_on_an_empty_database(project: Project) -> None:
    with_billing(project)
    project.manage("migrate", "-v0").end()
    query = "SELECT name, cron FROM gnsqsync_outbox_periodicmessage"
    assert [tuple(row) for row in project.database.ask(query)] == [
        ("nightly-report", "30 3 * * mon-fri")
    ]


def test_without_the_dependency_of_the_guide_the_error_names_it(project: Project) -> None:
    with_billing(project, "[]")
    output = project.manage("migrate", "-v0").end(code=1)
    assert f"needs {NEEDED!r} among its dependencies" in output


def test_a_migration_needs_the_newest_one_that_changes_the_table() -> None:
    from gnsqsync.django import outbox

    folder = Path(outbox.__file__).parent / "migrations"
    assert NEEDED[1] == max(path.stem for path in folder.glob("0*.py"))
