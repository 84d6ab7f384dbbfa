"""Makes the peers ready: virtual environments from PyPI, programs from Go modules by name.

Each peer has an environment of its own in a cache, so that they never meet ours.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.clients import HERE, Client

GO_MODULE = HERE / "go"
GO_PROGRAMS = {
    "gonsq": "./gonsq",
    "gowaits": "./gowaits",
    "bench_reader": "github.com/nsqio/nsq/bench/bench_reader",
    "bench_writer": "github.com/nsqio/nsq/bench/bench_writer",
}


class Unavailable(Exception):
    """A client that cannot be made ready here; the text says why."""


def cache_folder() -> Path:
    """Where the peers' environments are kept; XDG_CACHE_HOME is respected."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gnsqsync" / "bench"


def command_of(client: Client, say: Callable[[str], None]) -> list[str]:
    """The beginning of the command that runs one cell of this client; its order is appended.

    Makes its environment when that is missing or outdated. Raises Unavailable when that fails, for
    example without a network.
    """
    if client.go:
        folder = _go_programs(say)
        if client.runner in client.go:
            return [str(folder / client.runner)]
        return [sys.executable, str(client.script), str(folder)]
    if client.packages:
        return [_python_of(client, say), str(client.script)]
    return [sys.executable, str(client.script)]


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _interpreter(client: Client) -> tuple[tuple[int, int], str]:
    """This Python where the client runs on it, else the least that it needs."""
    ours = sys.version_info[:2]
    if ours >= client.python:
        return ours, sys.executable
    name = "python" + ".".join(map(str, client.python))
    # pyenv's on PATH only run when it was told so.
    kept = sorted(Path.home().glob(f".pyenv/versions/{name[6:]}.*/bin/{name}"))
    found = str(kept[-1]) if kept else shutil.which(name)
    if found is None:
        raise Unavailable(f"{client.name}: needs {name}, which is not here")
    return client.python, found


def _python_of(client: Client, say: Callable[[str], None]) -> str:
    (major, minor), interpreter = _interpreter(client)
    version = f"py{major}.{minor}"
    place = cache_folder() / f"{client.name}-{version}"
    python, ready = place / "bin" / "python", place / "ready.txt"
    wanted = "\n".join(client.packages)
    with _locked(place):
        if ready.is_file() and ready.read_text() == wanted and python.exists():
            return str(python)
        say(f"{client.name}: making {place}")
        shutil.rmtree(place, ignore_errors=True)
        _run(client.name, [interpreter, "-m", "venv", str(place)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(client.name, [*pip, *client.packages])
        ready.write_text(wanted)
    return str(python)


def _go_programs(say: Callable[[str], None]) -> Path:
    go = shutil.which("go")
    place = cache_folder() / "go"
    sources = [GO_MODULE / "go.mod", *sorted(GO_MODULE.glob("*/*.go"))]
    wanted = "\n".join(source.read_text() for source in sources)
    ready = place / "ready.txt"
    with _locked(place):
        if ready.is_file() and ready.read_text() == wanted:
            return place
        if go is None:
            raise Unavailable("no Go to build the programs on go-nsq and nsq's own benchmarks")
        say(f"go: building {', '.join(GO_PROGRAMS)}")
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            built = Path(scratch) / "go"
            built.mkdir()
            _run(
                "go",
                [go, "build", "-mod=readonly", "-o", str(built), *GO_PROGRAMS.values()],
                cwd=GO_MODULE,
                env={**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"},
            )
            (built / "ready.txt").write_text(wanted)
            shutil.rmtree(place, ignore_errors=True)
            built.rename(place)
    return place


def _run(
    name: str,
    command: Sequence[str],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, cwd=cwd, env=env
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name}: {' '.join(command)} took over 600 s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1000:]
        raise Unavailable(f"{name}: {' '.join(command)} failed:\n{said}")
