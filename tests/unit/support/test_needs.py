"""A package that is missing skips a test, and fails it where all extras are promised."""

from __future__ import annotations

from pathlib import Path

from tests.support.needs import EXTRAS
from tests.support.pytest_runs import run_pytest


def run(folder: Path, promise: dict[str, str]) -> tuple[int, str]:
    (folder / "conftest.py").write_text("pytest_plugins = ['tests.support.needs']\n")
    (folder / "test_module.py").write_text(
        "import pytest\npytest.importorskip('nothing_of_that_name')\ndef test_it(): pass\n"
    )
    (folder / "test_function.py").write_text(
        "import pytest\n"
        "from tests.support.needs import NoExtra, missing\n"
        "def test_import(): pytest.importorskip('nothing_of_that_name')\n"
        "def test_extra(): missing(NoExtra('nothing', 'spark'))\n"
        "def test_other(): pytest.skip('the kernel has none')\n"
    )
    return run_pytest(folder, "-ra", "--continue-on-collection-errors", environment=promise)


def test_a_missing_package_skips(tmp_path: Path) -> None:
    code, output = run(tmp_path, {})
    assert (code, output.splitlines()[-1].split(" in ")[0]) == (0, "4 skipped"), output


def test_a_missing_package_that_was_promised_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, {EXTRAS: "all"})
    assert code == 1, output
    assert "could not import 'nothing_of_that_name'" in output
    assert "2 failed, 1 skipped, 1 error" in output
