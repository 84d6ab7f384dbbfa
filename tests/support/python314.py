"""CPython 3.14 for machines that have none: unpacked once from the Go module by name.

``python -m tests.support.python314`` prints the path of its python, which has no pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.realnsq import Unavailable, go_build, keep

VERSION = "3.14.6"
GO_MODULE = Path(__file__).parent / "gopython"


def cache_folder() -> Path:
    """Return the folder of CPython, which may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gnsqsync" / f"python-{VERSION}"


def find_or_unpack() -> Path:
    """Return the path of python. Unavailable if there is none, with the reason."""
    folder = cache_folder()
    program = folder / "bin" / "python3"
    keep(folder, lambda: os.access(program, os.X_OK), _unpack)
    return program


def _unpack(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"there is no Go, whose module has CPython {VERSION}")
    unpacker = folder.with_name("gopython")
    go_build(go, f"CPython {VERSION}", GO_MODULE, unpacker, ".")
    subprocess.run([unpacker, folder], check=True)


def main() -> int:
    try:
        print(find_or_unpack())
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
