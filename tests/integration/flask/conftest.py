"""An nsqd for these tests, and ``flask`` as a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.forks import Forks
from tests.support.programs import Program
from tests.support.servers import Pool, Server

Flask = Callable[..., "FlaskCommand"]


class FlaskCommand(Program):
    """A running ``flask``."""

    def __init__(
        self, words: list[str], folder: Path, stdin: bytes, forks: Forks, **environment: str
    ) -> None:
        super().__init__(["flask", *words], folder, environment, stdin=stdin, forks=forks)


@pytest.fixture
def nsqd(server_pool: Pool) -> Server:
    return server_pool.get("embedded", "nsqd", (), "")


@pytest.fixture
def flask(tmp_path: Path, forks: Forks) -> Iterator[Flask]:
    """Start ``flask words`` in the test's folder; what still runs at the end is killed."""
    running: list[FlaskCommand] = []

    def start(*words: str, stdin: bytes = b"", **environment: str) -> FlaskCommand:
        running.append(FlaskCommand(list(words), tmp_path, stdin, forks, **environment))
        return running[-1]

    yield start
    for command in running:
        command.kill()
