"""Where the tests look for MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import mariadb as support
from tests.support.databases import Unavailable
from tests.support.mariadb import PROGRAMS, MariaDB, find


def test_both_programs_are_needed(tmp_path: Path) -> None:
    first, second = PROGRAMS
    for program in (first, second):
        with pytest.raises(Unavailable, match="is not installed: mariadb-server"):
            find(str(tmp_path))
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    assert find(str(tmp_path)) == [str(tmp_path / first), str(tmp_path / second)]


def test_servers_side_by_side_share_no_folder_of_temporary_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deletes what it finds there when it starts."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nls -d "$TMPDIR"\n')
    program.chmod(0o755)
    monkeypatch.setattr(support, "find", lambda: [str(program)] * 2)
    servers = [MariaDB(), MariaDB()]
    try:
        said = [server._said().strip() for server in servers]
        assert said == [str(Path(server.socket).parent / "tmp") for server in servers]
        assert said[0] != said[1]
    finally:
        for server in servers:
            server.close()
