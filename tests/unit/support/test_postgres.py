"""Where the tests look for PostgreSQL, and what a missing one means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import PROGRAMS, Unavailable, find
from tests.support.texts import ROOT


def install(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for program in PROGRAMS:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    return folder


def test_the_newest_of_debians(tmp_path: Path) -> None:
    for version in ("9.6", "15", "16"):
        install(tmp_path / version / "bin")
    (tmp_path / "17" / "bin").mkdir(parents=True)  # its programs were removed
    assert find("/nowhere", tmp_path) == tmp_path / "16" / "bin"


def test_the_path_comes_first_and_a_lone_link_is_followed(tmp_path: Path) -> None:
    install(tmp_path / "debian" / "16" / "bin")
    own = install(tmp_path / "own" / "bin")
    links = tmp_path / "links"
    links.mkdir()
    (links / "postgres").symlink_to(own / "postgres")
    assert find(str(links), tmp_path / "debian") == own


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="neither on the PATH nor below"):
        find("/nowhere", tmp_path)


@pytest.mark.parametrize(("ci", "word"), [("true", "1 error"), ("", "1 skipped")])
def test_without_one_tests_fail_in_ci_and_are_skipped_elsewhere(
    tmp_path: Path, ci: str, word: str
) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "from tests.support import postgres as support\n"
        "from tests.support.postgres import postgres\n"
        f"support.find.__defaults__ = ('/nowhere', Path({str(tmp_path)!r}))\n"
        "def test_it(postgres): ...\n"
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
    assert "neither on the PATH" in done.stdout or not ci
