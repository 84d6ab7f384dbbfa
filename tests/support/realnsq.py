"""The real nsqd, nsqlookupd and nsqadmin v1.3.0, found or built once from the Go module.

`python -m tests.support.realnsq` prints the folder that has both programs. Does not know how they
are started.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION = "1.3.0"
PROGRAMS = ("nsqd", "nsqlookupd")
# Programs that are built separately, because a machine with the servers may lack them.
OTHERS = (
    "nsq_stat",
    "nsq_tail",
    "nsq_to_file",
    "nsq_to_http",
    "nsq_to_nsq",
    "nsqadmin",
    "to_nsq",
)
GO_MODULE = Path(__file__).parent / "gonsq"


_lock = threading.Lock()
_outcome: Path | Exception | None = None


class Unavailable(Exception):
    """There is no real nsqd on this machine. The text has the reason."""


def cache_folder() -> Path:
    """Return the folder of the built programs, which may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gnsqsync" / f"nsq-{VERSION}"


def folder() -> Path | None:
    """Return the folder with nsqd and nsqlookupd, or None if neither found nor buildable."""
    try:
        return find_or_build()
    except Unavailable:
        return None


def find_or_build() -> Path:
    """Return the folder with nsqd and nsqlookupd. Unavailable if there is none, with the reason.

    A process looks once, and later calls have the same outcome, good or bad.
    The order is NSQ_BIN, a version 1.3.0 on PATH, the cache, a build. NSQ_BIN may have another
    version, so that the suite can test it. FileNotFoundError if NSQ_BIN is wrong.
    """
    global _outcome
    with _lock:
        if _outcome is None:
            try:
                _outcome = _find_or_build()
            except (Unavailable, FileNotFoundError) as error:
                _outcome = error
    if isinstance(_outcome, Exception):
        raise _outcome
    return _outcome


def _find_or_build() -> Path:
    named = os.environ.get("NSQ_BIN")
    if named:
        if not _is_complete(Path(named)):
            raise FileNotFoundError(f"NSQ_BIN={named} does not hold {' and '.join(PROGRAMS)}")
        return Path(named)
    on_path = _on_path()
    if on_path is not None:
        return on_path
    cached = cache_folder()
    _build(cached, PROGRAMS)
    return cached


def program(name: str) -> Path:
    """Return the path of one of PROGRAMS or OTHERS. Raises the errors of find_or_build()."""
    found = find_or_build() / name
    if os.access(found, os.X_OK):
        return found
    others = cache_folder().with_name(f"nsq-{VERSION}-others")
    with _lock:
        _build(others, OTHERS)
    return others / name


def _is_complete(place: Path, programs: Sequence[str] = PROGRAMS) -> bool:
    return all(os.access(place / program, os.X_OK) for program in programs)


def _on_path() -> Path | None:
    nsqd = shutil.which("nsqd")
    if nsqd is None or not _is_complete(Path(nsqd).parent):
        return None
    answer = subprocess.run([nsqd, "--version"], capture_output=True, text=True, check=False)
    return Path(nsqd).parent if f"v{VERSION} " in answer.stdout else None


def _build(target: Path, programs: Sequence[str]) -> None:
    """Build the programs, unless they exist."""

    def build(scratch: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise Unavailable(f"no nsqd {VERSION} on PATH or in NSQ_BIN, and no Go to build it")
        packages = [f"github.com/nsqio/nsq/apps/{name}" for name in programs]
        scratch.mkdir()
        go_build(go, f"nsq {VERSION}", GO_MODULE, scratch, *packages)

    keep(target, lambda: _is_complete(target, programs), build)


def keep(target: Path, is_complete: Callable[[], bool], make: Callable[[Path], None]) -> None:
    """Make a folder once for all processes, unless it is complete.

    ``make`` gets a path beside the target, and makes the folder there.
    """
    if is_complete():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The lock keeps parallel test runs from a second build. The rename hides an unfinished one.
    with open(target.parent / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete():
            return
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            scratch = Path(folder) / "made"
            make(scratch)
            if target.exists():
                shutil.rmtree(target)
            scratch.rename(target)


def go_build(go: str, what: str, module: Path, output: Path, *packages: str) -> None:
    """Build packages of a Go module to a file or into a folder. Unavailable with Go's error."""
    build = subprocess.run(
        [go, "build", "-mod=readonly", "-o", str(output), *packages],
        cwd=module,
        env={**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode != 0:
        raise Unavailable(f"go build of {what} failed:\n{build.stderr.strip()}")


def main() -> int:
    try:
        print(find_or_build())
    except (Unavailable, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
