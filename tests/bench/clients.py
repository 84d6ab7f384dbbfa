"""The clients beside each other: their runners, pinned packages and the Python that runs them.

Packages of peers go into virtual environments of their own, so that they never meet ours.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


class Unavailable(Exception):
    """A client that cannot be made ready here; the text says why."""


@dataclass(frozen=True)
class Client:
    """One column of ratios. ``packages`` are exact pins; without any, this Python runs it."""

    name: str
    runner: str
    packages: tuple[str, ...] = ()
    flavour: str = ""
    kinds: tuple[str, ...] = ("publish", "publish_many", "consume")
    default: bool = True

    @property
    def script(self) -> Path:
        return HERE / "runners" / self.runner

    def environment(self) -> dict[str, str]:
        """What the child sees: ours is taken from this checkout, peers never see it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        if self.name == "ours":
            env["PYTHONPATH"] = str(REPOSITORY)
        return env


# Both peers run on Python 3.10 to 3.13 as they are: gnsq 1.0.2 needs nothing beyond a current
# gevent and blinker, pynsq 0.9.1 needs a tornado that it may ask for the running loop. What
# pip would choose is pinned too, so that a ratio is not moved by a release of something else.
CLIENTS = (
    Client("ours", "ours.py", flavour="threads"),
    Client("floor", "floor.py", flavour="auto"),
    Client("floor-real", "floor.py", flavour="real", kinds=("consume",), default=False),
    Client(
        "gnsq",
        "gnsq_.py",
        (
            "gnsq==1.0.2",
            "gevent==26.9.0",
            "greenlet==3.5.6",
            "blinker==1.9.0",
            "six==1.17.0",
            "urllib3==2.8.0",
            "zope.event==6.2",
            "zope.interface==8.7",
        ),
    ),
    Client("pynsq", "pynsq_.py", ("pynsq==0.9.1", "tornado==6.6.1")),
)


def select(names: Sequence[str]) -> tuple[Client, ...]:
    """The clients with these names, in the order of the table; ValueError for an unknown one."""
    known = {client.name for client in CLIENTS}
    for name in names:
        if name not in known:
            raise ValueError(f"no client is called {name}; there are {', '.join(sorted(known))}")
    return tuple(c for c in CLIENTS if (c.name in names if names else c.default))


def cache_folder() -> Path:
    """Where the peers' environments are kept; XDG_CACHE_HOME is respected."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gnsqsync" / "bench"


def python_of(client: Client, say: Callable[[str], None]) -> str:
    """The Python that runs this client; makes its environment when it is missing or outdated.

    Raises Unavailable when that fails, for example without a network.
    """
    if not client.packages:
        return sys.executable
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    place = cache_folder() / f"{client.name}-{version}"
    python, ready = place / "bin" / "python", place / "ready.txt"
    wanted = "\n".join(client.packages)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.is_file() and ready.read_text() == wanted and python.exists():
            return str(python)
        say(f"{client.name}: making {place}")
        shutil.rmtree(place, ignore_errors=True)
        _command(client, [sys.executable, "-m", "venv", str(place)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _command(client, [*pip, *client.packages])
        ready.write_text(wanted)
    return str(python)


def _command(client: Client, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{client.name}: {' '.join(command)} took over 600 s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1000:]
        raise Unavailable(f"{client.name}: {' '.join(command)} failed:\n{said}")
