"""An nsqd for these tests, and ``flask`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.django.conftest import Command
from tests.support.servers import ROOT, Pool, Server

Flask = Callable[..., "FlaskCommand"]


class FlaskCommand(Command):
    """A running ``flask``; its output goes to a file."""

    def __init__(self, words: list[str], folder: Path, stdin: bytes, **environment: str) -> None:
        self.words = words
        self._path = folder / f"output {len(list(folder.glob('output *')))}"
        source = self._path.with_name(self._path.name.replace("output", "input"))
        source.write_bytes(stdin)
        with open(self._path, "wb") as output, open(source, "rb") as lines:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "flask", *words],
                cwd=folder,
                stdin=lines,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    **environment,
                },
                start_new_session=True,
            )


@pytest.fixture
def nsqd(server_pool: Pool) -> Server:
    return server_pool.get("embedded", "nsqd", (), "")


@pytest.fixture
def flask(tmp_path: Path) -> Iterator[Flask]:
    """Start ``flask words`` in the test's folder; what still runs at the end is killed."""
    running: list[FlaskCommand] = []

    def start(*words: str, stdin: bytes = b"", **environment: str) -> FlaskCommand:
        running.append(FlaskCommand(list(words), tmp_path, stdin, **environment))
        return running[-1]

    yield start
    for command in running:
        command.kill()
