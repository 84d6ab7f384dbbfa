"""Hosts for Spark on one machine: each with a network, a name, a /tmp and processes of its own.

A host is a network namespace on one bridge, and a mount namespace in which the checkout and /root
are hidden. What runs there is user nobody's. All hosts share one folder, /mnt/shared, as NFS would
be; Spark is in /mnt/spark, and the same Python at the same path. Knows `ip`, `mount` and `unshare`;
needs root. Knows nothing of NSQ.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.spark.processes import Family
from tests.support.servers import ROOT, Server

USER, GROUP = "nobody", "nogroup"
# What a host has of its own in /mnt, and what is mounted there.
_OWN = ("tmp", "home", "conf", "shared", "spark", "python")
# What the page calls the host of nsqlookupd. The nsqds register by their address.
_LOOKUPD, _LOOKUPD_TCP, _LOOKUPD_HTTP = "lookupd", 4160, 4161


class Unavailable(Exception):
    """No hosts here; the text says why."""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{shlex.join(words)}: {done.stderr.strip()}")


def require() -> None:
    """Raises Unavailable where no host can be made."""
    for program in ("ip", "mount", "unshare", "setpriv"):
        if shutil.which(program) is None:
            raise Unavailable(f"no `{program}` on the PATH")
    if os.geteuid() != 0:
        raise Unavailable("hosts in namespaces need root")


class Network:
    """A bridge with an address of ours, ``outer``, and hosts on it; a context manager.

    Their files are in ``folder``; ``spark`` is Spark's home.
    """

    def __init__(self, folder: Path, spark: Path, names: Sequence[str]) -> None:
        require()
        self.folder = folder
        self.shared = folder / "shared"
        # Of the block for tests of devices (RFC 2544), the half that tests/chaos leaves.
        prefix = f"198.19.{os.getpid() % 256}"
        self.outer = f"{prefix}.1"
        self.hosts = {
            name: Host(self, name, f"{prefix}.{number}", spark)
            for number, name in enumerate(names, 11)
        }
        self.bridge = f"sp{os.getpid()}"

    def __enter__(self) -> Network:
        self.shared.mkdir()
        shutil.chown(self.shared, USER, GROUP)
        lines = [f"{host.address} {name}" for name, host in self.hosts.items()]
        text = "\n".join(["127.0.0.1 localhost", f"{self.outer} {_LOOKUPD}", *lines])
        (self.folder / "hosts").write_text(f"{text}\n")
        try:
            _run("ip", "link", "add", self.bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self.outer}/24", "dev", self.bridge)
            _run("ip", "link", "set", self.bridge, "up")
            for host in self.hosts.values():
                host.create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            host.remove()
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)

    def server(self, kind: str, program: str, flags: Sequence[str]) -> Server:
        """A server of NSQ outside of the hosts, which they reach at ``outer``.

        nsqlookupd has its usual ports, and hosts know it as ``lookupd``.
        """
        server = _Reachable(self.outer, kind, program, flags)
        if program == "nsqlookupd":
            server.tcp_address = (self.outer, _LOOKUPD_TCP)
            server.http_address = (self.outer, _LOOKUPD_HTTP)
        return server


class _Reachable(Server):
    def __init__(self, address: str, kind: str, program: str, flags: Sequence[str]) -> None:
        super().__init__(kind, program, flags)
        self._address = address

    def command(self) -> list[str]:
        return [word.replace("127.0.0.1", self._address) for word in super().command()]


class Host:
    """One host. ``files`` is what it sees as /mnt, but for what is mounted in there."""

    def __init__(self, network: Network, name: str, address: str, spark: Path) -> None:
        self.name = name
        self.address = address
        self.files = network.folder / name
        self._network = network
        self._spark = spark
        self._space = f"spark-{os.getpid()}-{name}"

    def create(self) -> None:
        """The namespace and the folders."""
        for own in _OWN:
            (self.files / own).mkdir(parents=True)
            shutil.chown(self.files / own, USER, GROUP)
        bridge, space = self._network.bridge, self._space
        link = f"{bridge}-{self.address.rpartition('.')[2]}"
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "link", "set", link, "master", bridge, "up")
        _run("ip", "-n", space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run("ip", "-n", space, "link", "set", "eth0", "up")
        _run("ip", "-n", space, "link", "set", "lo", "up")

    def remove(self) -> None:
        """The namespace goes, and its wire with it."""
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] = {}
    ) -> Family:
        """Run a command as nobody, in its home /mnt/home; output goes to ``log``."""
        words = ["ip", "netns", "exec", self._space, "unshare", "--uts", "sh", "-ec"]
        return Family([*words, self._script(environment), "sh", *command], {}, log)

    def _script(self, environment: Mapping[str, str]) -> str:
        """Mounts, which end with the process, and then its arguments as a command of nobody."""
        python = Path(sys.base_prefix)
        lines = [
            f"hostname {self.name}",
            f"mount --bind {self._network.folder}/hosts /etc/hosts",
            f"mount --bind {self.files} /mnt",
            f"mount --bind {self._network.shared} /mnt/shared",
            f"mount --bind {self._spark} /mnt/spark",
            f"mount --bind {python} /mnt/python",
            # Nothing of these is on a host.
            f"mount -t tmpfs -o mode=755 none {ROOT}",
            "mount -t tmpfs -o mode=755 none /root",
            # Nobody may look into /root, where a Python of pyenv is.
            f"mkdir -p {python}",
            f"mount --bind /mnt/python {python}",
            "mount --bind /mnt/tmp /tmp",
            "cd /mnt/home",
        ]
        variables = {
            "HOME": "/mnt/home",
            "USER": USER,
            "LANG": "C.UTF-8",
            "SPARK_HOME": "/mnt/spark",
            "SPARK_CONF_DIR": "/mnt/conf",
            "PATH": f"{python}/bin:/mnt/spark/bin:/usr/local/bin:/usr/bin:/bin",
            **environment,
        }
        pairs = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
        family = 'GNSQSYNC_TEST_FAMILY="$GNSQSYNC_TEST_FAMILY"'
        lines.append(
            f"exec setpriv --reuid={USER} --regid={GROUP} --clear-groups"
            f' env -i {family} {pairs} "$@"'
        )
        return "\n".join(lines)
