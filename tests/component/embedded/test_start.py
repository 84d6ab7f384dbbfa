"""What a start of the embedded servers imports: that is most of its time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.programs import Mortal

# Each of these takes a hundredth of a start or more, with what it imports.
EXPENSIVE = {
    "asyncio",
    "click",
    "dataclasses",
    "datetime",
    "decimal",
    "email",
    "gevent.pywsgi",
    "concurrent.futures",
    "encodings.idna",
    "gevent.monkey",
    "gevent.pool",
    "gevent.queue",
    "gevent.resolver._addresses",
    "gevent.ssl",
    "http",
    "logging",
    "inspect",
    "platform",
    "requests",
    "rich",
    "ssl",
    "tempfile",
    "tomllib",
}

START = """
import atexit
from gnsqsync.embedded.__main__ import main
atexit.register(lambda: print(*sys.modules))
main(sys.argv[1:])
"""


def command(code: str, *arguments: str) -> list[str]:
    """A Python that runs the code without site, in which an editable installation imports a lot."""
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    return [sys.executable, "-I", "-S", "-c", path + code, *arguments]


def loaded_by_gevent() -> set[str]:
    """The modules that a server cannot do without: since Python 3.14 dataclasses is one."""
    code = "import gevent.server; print(*sys.modules)"
    out = subprocess.run(command(code), capture_output=True, text=True, check=True, timeout=60)
    return set(out.stdout.split())


def loaded(program: str, *flags: str) -> set[str]:
    """The modules of a server that listens."""
    addresses = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    server = command(START, program, *addresses, *flags)
    with Mortal(server, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            assert any(b"HTTP: listening" in line for line in process.stderr)
        finally:
            process.terminate()
        out, _ = process.communicate(timeout=20)
    return set(out.decode().split())


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_a_start_imports_only_what_it_needs(program: str) -> None:
    modules = loaded(program)
    assert "gevent.server" in modules
    assert not (modules & EXPENSIVE) - loaded_by_gevent()


def test_flags_import_what_they_need() -> None:
    assert "gnsqsync.embedded.auth" in loaded("nsqd", "--auth-http-address=127.0.0.1:1")
    assert "gnsqsync.embedded.lookup_peer" in loaded("nsqd", "--lookupd-tcp-address=127.0.0.1:1")
