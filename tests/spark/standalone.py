"""A standalone Spark cluster on loopback: a master, and workers that Spark takes for two hosts.

Speculation needs that: the copy of a task never runs on the host of the first attempt. Knows
nothing of NSQ. Linux only, where all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from tests.spark import session

START_TIMEOUT = 60.0
HOSTS = ("127.0.0.1", "127.0.0.2")
CORES = 3


class Standalone:
    """A context manager; ``url`` is the master's, CORES on each of HOSTS."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Standalone:
        try:
            log = self._start("Master", HOSTS[0], "--host", HOSTS[0])
            self.url = self._wait_for(log, r"Starting Spark master at (spark://\S+)")
            logs = []
            for host in HOSTS:
                limits = (
                    "--cores",
                    str(CORES),
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(self._folder / host),
                )
                logs.append(self._start("Worker", host, "--host", host, *limits, self.url))
            for log in logs:
                self._wait_for(log, r"(Successfully registered) with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Workers end their executors; the master goes last.
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def _start(self, role: str, host: str, *arguments: str) -> Path:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._folder / f"{role}-{host}.log"
        command = [
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{role.lower()}.{role}",
        ]
        command += ["--port", "0", "--webui-port", "0", *arguments]
        environment = {**os.environ, **session.environment(), "SPARK_LOCAL_IP": host}
        environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(home)}
        with open(log, "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            )
        return log

    def _wait_for(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + START_TIMEOUT
        while (found := re.search(pattern, text := log.read_text(errors="replace"))) is None:
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                raise RuntimeError(f"the standalone cluster does not start:\n{text[-4000:]}")
            time.sleep(0.05)
        return found[1]
