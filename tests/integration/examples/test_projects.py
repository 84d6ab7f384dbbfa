"""The applications of docs/examples as projects: their own tests, and what their pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.applications import line_of
from tests.support.programs import Program
from tests.support.texts import EXAMPLES, ROOT, project

SHOP = EXAMPLES / "shop"


def test_the_tests_of_the_shop(tmp_path: Path) -> None:
    """By the line of the page, in a checkout, where the tests of gnsqsync lie beside it."""
    line = "docs/examples/shop/manage.py test orders"
    assert f"   $ .venv/bin/python {line}\n" in (EXAMPLES / "shop.rst").read_text()
    words = ["python", "-W", "error", *line.split(), "--noinput"]
    output = Program(words, tmp_path, {"SHOP_DATA": str(tmp_path)}, cwd=ROOT).end()
    assert re.search(r"Ran \d+ tests", output) and "\nOK\n" in output


def test_the_migrations_of_the_shop_are_complete(tmp_path: Path) -> None:
    words = ["python", "manage.py", "makemigrations", "--check", "--dry-run"]
    Program(words, tmp_path, {"SHOP_DATA": str(tmp_path)}, cwd=SHOP).end()


def test_the_shop_is_ready_for_its_handlers(tmp_path: Path) -> None:
    words = ["python", "manage.py", "check"]
    # The checks of Django 6 open the database.
    output = Program(words, tmp_path, {"SHOP_DATA": str(tmp_path)}, cwd=SHOP).end()
    assert "no issues (0 silenced)" in output


def test_the_tests_of_the_link_counter(tmp_path: Path) -> None:
    line = "-m pytest -c /dev/null docs/examples/link_counter"
    page = (EXAMPLES / "link-counter.rst").read_text()
    assert f" && .venv/bin/python {line}\n" in page
    words = ["python", *line.split(), "-p", "no:cacheprovider"]
    assert re.search(r"\d+ passed in", Program(words, tmp_path, cwd=ROOT).end())


@pytest.mark.parametrize(("name", "extra"), [("shop", "django"), ("link-counter", "flask")])
def test_one_line_starts_it_from_a_clean_checkout(name: str, extra: str) -> None:
    fresh = f"python3 -m venv .venv && .venv/bin/pip install -q -e '.[{extra}]' && .venv/bin/"
    assert line_of(name).startswith(fresh)
    assert extra in project()["optional-dependencies"]
