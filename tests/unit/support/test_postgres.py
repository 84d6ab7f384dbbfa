"""Where the tests look for PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import Unavailable
from tests.support.postgres import PROGRAMS, find


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
