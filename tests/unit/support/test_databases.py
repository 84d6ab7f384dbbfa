"""What the tests do without a server of a database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.texts import ROOT

# By the module of a server: the places to look for it, and the words of the reason.
SERVERS = [
    ("mariadb", "('/nowhere',)", "is not installed"),
    ("postgres", "('/nowhere', Path('/nowhere'))", "neither on the PATH"),
]


@pytest.mark.parametrize(("ci", "word"), [("true", "1 error"), ("", "1 skipped")])
@pytest.mark.parametrize(("name", "nowhere", "reason"), SERVERS, ids=[name for name, *_ in SERVERS])
def test_without_one_tests_fail_in_ci_and_are_skipped_elsewhere(
    tmp_path: Path, name: str, nowhere: str, reason: str, ci: str, word: str
) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        f"from tests.support import {name} as support\n"
        f"from tests.support.{name} import {name}\n"
        f"support.find.__defaults__ = {nowhere}\n"
        f"def test_it({name}): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "CI": ci, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert word in done.stdout, done.stdout + done.stderr
    assert reason in done.stdout or not ci
