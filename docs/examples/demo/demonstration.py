"""What both demonstrations have: options, a folder for their data, an nsqd, an end by Ctrl-C."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from processes import Processes, free_port


class Demonstration(Processes):
    """The processes of one, its ports on 127.0.0.1, and where its data is."""

    def __init__(self, data: Path, port: int) -> None:
        super().__init__({**os.environ, "PYTHONUNBUFFERED": "1"})
        self.data = data
        self.port = port
        self.nsqd_port, self.nsqd_http_port = free_port(), free_port()

    def start_nsqd(self) -> None:
        """Returns when it listens."""
        folder = self.data / "nsqd"
        folder.mkdir(exist_ok=True)
        self.start(
            *(sys.executable, "-m", "gnsqsync.cli", "nsqd", "--log-level=warn"),
            f"--tcp-address=127.0.0.1:{self.nsqd_port}",
            f"--http-address=127.0.0.1:{self.nsqd_http_port}",
            f"--data-path={folder}",
        )
        self.wait_for_port(self.nsqd_port)

    def wait_for_ctrl_c(self, name: str) -> None:
        """Says where the site is once it listens; what is killed meanwhile is started again."""
        self.wait_for_port(self.port)
        print(f"{name} is at http://127.0.0.1:{self.port}/ - Ctrl-C ends it.", flush=True)
        while self.wait():
            pass


@contextmanager
def demonstration(about: str) -> Iterator[Demonstration]:
    """By the options of the command line. Exit code 1 when one of its processes fails."""
    parser = argparse.ArgumentParser(
        description=f"{about} Database and messages are in a temporary folder."
    )
    parser.add_argument("--port", type=int, default=0, help="Of the site. Default: a free one.")
    parser.add_argument("--data", metavar="FOLDER", help="Keep database and messages there.")
    options = parser.parse_args()
    try:
        with ExitStack() as stack:
            folder = options.data or stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gnsqsync-")
            )
            data = Path(folder).resolve()
            data.mkdir(parents=True, exist_ok=True)
            demo = Demonstration(data, options.port or free_port())
            with demo:
                yield demo
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
