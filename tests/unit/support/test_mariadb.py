"""Where the tests look for MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import Unavailable
from tests.support.mariadb import PROGRAMS, find


def test_both_programs_are_needed(tmp_path: Path) -> None:
    first, second = PROGRAMS
    for program in (first, second):
        with pytest.raises(Unavailable, match="is not installed: mariadb-server"):
            find(str(tmp_path))
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    assert find(str(tmp_path)) == [str(tmp_path / first), str(tmp_path / second)]
