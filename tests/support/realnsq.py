"""The real nsqd, nsqlookupd and nsqadmin v1.3.0: found, or built once from the Go module by name.

`python -m tests.support.realnsq` prints the folder that holds both programs. Knows nothing of how
they are started.
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
# Built apart, as a machine that has the servers need not have them.
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
    """There is no real nsqd here; the text says why."""


def cache_folder() -> Path:
    """Where the built programs are kept, whether or not they are there yet."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gnsqsync" / f"nsq-{VERSION}"


def folder() -> Path | None:
    """The folder with nsqd and nsqlookupd, or None when they are neither found nor buildable."""
    try:
        return find_or_build()
    except Unavailable:
        return None


def find_or_build() -> Path:
    """The folder with nsqd and nsqlookupd; Unavailable says why there is none.

    Looks once in a process; the outcome, good or bad, is the answer to all later calls.
    The order: NSQ_BIN, a version 1.3.0 on PATH, the cache, a build. NSQ_BIN is taken at its word,
    so that the suite can be pointed at another version; FileNotFoundError when it is wrong.
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
    """The path of any of PROGRAMS and OTHERS; raises as find_or_build()."""
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
    """Nothing when they are there."""

    def build(scratch: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise Unavailable(f"no nsqd {VERSION} on PATH or in NSQ_BIN, and no Go to build it")
        packages = [f"github.com/nsqio/nsq/apps/{name}" for name in programs]
        scratch.mkdir()
        go_build(go, f"nsq {VERSION}", GO_MODULE, scratch, *packages)

    keep(target, lambda: _is_complete(target, programs), build)


def keep(target: Path, is_complete: Callable[[], bool], make: Callable[[Path], None]) -> None:
    """Have a folder made once for all processes, unless it is complete.

    ``make`` gets a path beside the target, and makes the folder there.
    """
    if is_complete():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The lock spares parallel test runs a second build; the rename makes a half-done one invisible.
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
    """Build packages of a Go module to a file or into a folder; Unavailable with Go's own error."""
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
