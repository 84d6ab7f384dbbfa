"""Network namespaces: a server behind a pair of virtual interfaces that can be cut in silence.

Knows `ip` of iproute2; needs root. A partition here is one that no socket is told of.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence

from tests.support.servers import Server

_numbers = itertools.count()


class Unavailable(Exception):
    """No namespaces here; the text says why."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"ip {' '.join(words)}: {done.stderr.strip()}")


def require() -> None:
    """Raises Unavailable where a namespace cannot be made."""
    if shutil.which("ip") is None:
        raise Unavailable("no `ip` on the PATH; it is in the package iproute2")
    Namespace().close()


class Namespace:
    """One namespace with one address in it, ``inner``; our end of the wire is ``outer``."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"chaos-{os.getpid()}-{number}"
        self._link = f"ch{os.getpid() % 1_000_000}n{number}"
        # A /30 for each, of the block that is kept for tests of devices (RFC 2544).
        third, fourth = divmod((os.getpid() * 16 + number) % 16_384, 64)
        prefix = f"198.18.{third}"
        self.outer, self.inner = (f"{prefix}.{fourth * 4 + host}" for host in (1, 2))
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._link, "type", "veth", "peer", "name", "inside",
                "netns", self.name)  # fmt: skip
            _ip("addr", "add", f"{self.outer}/30", "dev", self._link)
            _ip("link", "set", self._link, "up")
            self._inside("addr", "add", f"{self.inner}/30", "dev", "inside")
            self._inside("link", "set", "lo", "up")
            self.heal()
        except BaseException:
            self.close()
            raise

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)

    def cut(self) -> None:
        """From now on nothing passes, in either direction."""
        self._inside("link", "set", "inside", "down")

    def heal(self) -> None:
        self._inside("link", "set", "inside", "up")

    def close(self) -> None:
        """The virtual wire goes with it."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


class SeparateServer(Server):
    """A server of the kind "real" that lives in a namespace."""

    def __init__(self, space: Namespace, program: str, flags: Sequence[str] = ()) -> None:
        super().__init__("real", program, flags)
        self.space = space

    def command(self) -> list[str]:
        words = [word.replace("127.0.0.1", self.space.inner) for word in super().command()]
        return ["ip", "netns", "exec", self.space.name, *words]
