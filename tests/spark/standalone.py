"""Standalone Spark clusters: a master, and workers that Spark takes for two hosts.

Speculation needs that: the copy of a task never runs on the host of the first attempt. There is one
on loopback, for a driver in this process, and one on hosts of their own. Knows nothing of NSQ.
Linux only, where all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from pathlib import Path

from tests.spark import session
from tests.spark.hosts import Host, Network
from tests.spark.processes import Family

START_TIMEOUT = 60.0
HOSTS_TIMEOUT = 600.0
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


MASTER, WORKERS = "master", ("worker-1", "worker-2")
_PORT = 7077
# Of all hosts: so that a cluster fits on a machine of two cores that is not idle.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
_DAEMONS = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class OnHosts:
    """A master and two workers, each on its host of a Network; a context manager.

    Its processes, and those of the executors, are the members of ``workers``: host -> Family.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._master: Family | None = None
        self.workers: dict[str, Family] = {}

    def __enter__(self) -> OnHosts:
        for host in self._network.hosts.values():
            lines = [f"{key} {value}\n" for key, value in _SETTINGS.items()]
            (host.files / "conf" / "spark-defaults.conf").write_text("".join(lines))
        try:
            ports = ("--port", str(_PORT), "--webui-port", "8080")
            self._master = self._start(self._network.hosts[MASTER], "master.Master", *ports)
            for name in WORKERS:
                self.start_worker(name)
            for name in WORKERS:
                self._wait_for(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        chance = random.Random(0)
        for family in (*self.workers.values(), self._master):
            if family is not None:
                family.kill(chance)

    def start_worker(self, name: str) -> None:
        """Start it, or start it again after its death; do not wait."""
        limits = ("--cores", "2", "--memory", "1g", "--work-dir", "/tmp/work")
        url = f"spark://{MASTER}:{_PORT}"
        self.workers[name] = self._start(self._network.hosts[name], "worker.Worker", *limits, url)

    def _start(self, host: Host, role: str, *arguments: str) -> Family:
        command = ["spark-class", f"org.apache.spark.deploy.{role}", "--host", host.name]
        return host.start([*command, *arguments], self._log(host.name), _DAEMONS)

    def _log(self, name: str) -> Path:
        return self._network.folder / f"{name}.log"

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + HOSTS_TIMEOUT
        while "Successfully registered with master" not in (
            text := self._log(name).read_text(errors="replace")
        ):
            if time.monotonic() > deadline or self.workers[name].process.poll() is not None:
                raise RuntimeError(f"{name} does not start:\n{text[-4000:]}")
            time.sleep(0.05)
