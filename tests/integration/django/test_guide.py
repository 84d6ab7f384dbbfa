"""The guide to Django names every option and every key; its project is in test_quickstarts."""

from __future__ import annotations

import re

import pytest

from gnsqsync.django.config import KEYS
from tests.integration.django.conftest import Project
from tests.support.texts import DOCS

GUIDE = DOCS / "guides" / "django.rst"
# Of every command of Django.
COMMON = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
COMMON |= {"--no-color", "--force-color", "--skip-checks"}


@pytest.mark.parametrize(
    ("command", "title", "next_title"),
    [
        ("nsq_consume", "manage.py nsq_consume", "nsq_publish and nsq_stat"),
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
