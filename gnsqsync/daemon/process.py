"""A daemon as a child process: the Python one, or a real binary with the same flags.

Knows command lines, log lines and processes. Imports neither gevent nor a server, so any process
can use it. Standard modules are used by attribute, so that gevent's patches have effect.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gnsqsync.daemon import flags as flag_module
from gnsqsync.daemon.options import Options
from gnsqsync.errors import ConfigError, NSQError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ServerFailed", "ServerProcess"]

_LISTENING = re.compile(r" INFO: (TCP|HTTP|HTTPS): listening on (\S+)\s*\n")
_LOG_TAIL = 64 * 1024
_POLL_INTERVAL = 0.01
# The real binary does not watch its parent, so a shell does: its `read` ends when the pipe closes.
_GUARDIAN = ("/bin/sh", "-c", 'read -r _; kill -KILL "$0"')


class ServerFailed(NSQError):
    """The server ended, or did not listen in time. The text has the end of its log."""


class _Child:
    """The processes and the folder of one server, which are removed with their owner."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.folder = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.guardian: subprocess.Popen[bytes] | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the server's end. Return its exit code. subprocess.TimeoutExpired."""
        process = self.process
        assert process is not None
        code = process.wait(timeout)
        self.process = None
        if process.stdin is not None:
            process.stdin.close()
        if self.guardian is not None:
            self.guardian.kill()
            self.guardian.wait()
            assert self.guardian.stdin is not None
            self.guardian.stdin.close()
            self.guardian = None
        return code

    def clean_up(self) -> None:
        """Kill the processes and remove the folder, but not in a forked child of the owner."""
        if os.getpid() != self.owner:
            return
        if self.process is not None:
            self.process.kill()
            self.wait()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = ""


class ServerProcess:
    """The base of Nsqd, Nsqlookupd and Nsqadmin. ``flags`` are options by field name.

    ``addresses`` are options, too; None means a port of 127.0.0.1 that the kernel chooses.
    """

    options: ClassVar[type[Options]]
    # Words after ``python -m``.
    _module: ClassVar[Sequence[str]]

    def __init__(
        self,
        addresses: dict[str, str | None],
        binary: str | None,
        start_timeout: float,
        flags: dict[str, Any],
    ) -> None:
        given = {name: value for name, value in addresses.items() if value is not None} | flags
        known = list(self.options.known)
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"{self.options.program} has no flag {name!r}{hint}")
        if given.get("log_level", "info") not in ("debug", "info"):
            raise ConfigError("log_level must be debug or info, as the ports are read from the log")
        self._binary = binary
        self._start_timeout = start_timeout
        self._given = given
        self._child = _Child()
        self._log_start = 0
        self._last_log = ""
        self._exit_code = 0
        # Addresses after the first start, by the label of the log line.
        self._addresses: dict[str, str] = {}
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def start(self) -> Self:
        """Start the server, unless it runs, and return when it listens.

        Raises:
            ServerFailed: It ended, or did not listen within ``start_timeout`` seconds.
        """
        if self.is_running:
            return self
        child = self._child
        if not child.folder:
            child.folder = tempfile.mkdtemp(prefix=f"{self.options.program}-")
            self._finalizer = weakref.finalize(self, child.clean_up)
        with open(self._log_path, "ab") as log:
            self._log_start = log.tell()
            # The server has its own session, because Ctrl-C at a terminal is meant for the owner.
            # The log goes to a file, because a pipe would have to be read while the server runs.
            child.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL if self._binary else subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        if self._binary:
            child.guardian = subprocess.Popen(
                [*_GUARDIAN, str(child.process.pid)], stdin=subprocess.PIPE, start_new_session=True
            )
        self._wait_until_it_listens()
        return self

    def stop(self, timeout: float = 10.0) -> int:
        """Stop cleanly (SIGTERM), or after ``timeout`` seconds by SIGKILL. Return the exit code.

        Ports and data are kept for ``restart()``. For a stopped server return the last exit code.
        """
        child = self._child
        if child.process is not None:
            child.process.terminate()
            try:
                self._exit_code = child.wait(timeout)
            except subprocess.TimeoutExpired:
                return self.kill()
        return self._exit_code

    def kill(self) -> int:
        """Kill the server (SIGKILL) as in a crash, saving nothing. Return the exit code (-9)."""
        child = self._child
        if child.process is not None:
            child.process.kill()
            self._exit_code = child.wait()
        return self._exit_code

    def restart(self, timeout: float = 10.0) -> Self:
        """Stop, then start on the same ports with the same data.

        Args:
            timeout: Seconds for the stop, as in ``stop()``.

        Raises:
            ServerFailed: As in ``start()``.
        """
        self.stop(timeout)
        return self.start()

    def close(self, timeout: float = 10.0) -> None:
        """Stop, and remove the temporary folder. ``log`` stays readable.

        Args:
            timeout: Seconds for the stop, as in ``stop()``.
        """
        self.stop(timeout)
        self._last_log = self.log
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # The caller has no server that it could close.
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = next(iter(self._addresses.values()), None)
        state = f"pid {self.pid} at {where}" if self.is_running else "stopped"
        return f"<{type(self).__name__} {state}>"

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        process = self._child.process
        if process is None:
            return False
        if process.poll() is None:
            return True
        self._exit_code = self._child.wait()
        return False

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            ServerFailed: It does not run.
        """
        process = self._child.process
        if process is None:
            raise ServerFailed(f"{self.options.program} is not running")
        return process.pid

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP listener. ``restart()`` keeps it."""
        return self._address("HTTP")

    @property
    def log(self) -> str:
        """The end of the server's log since its last start (at most 64 KiB)."""
        if not self._child.folder:
            return self._last_log
        with open(self._log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _LOG_TAIL))
            return log.read().decode("utf-8", "replace")

    def _address(self, label: str) -> str:
        found = self._addresses.get(label)
        if found is None:
            program = self.options.program
            raise ServerFailed(f"{program} has no {label} address: not started, or switched off")
        host, colon, port = found.rpartition(":")
        # A server that listens on all interfaces is reached on loopback.
        everywhere = ("", "0.0.0.0", "[::]")  # nosec B104
        return f"127.0.0.1:{port}" if colon and host in everywhere else found

    @property
    def _log_path(self) -> str:
        return os.path.join(self._child.folder, "log")

    def _listeners(self) -> dict[str, str]:
        """Return {label of the log line: address option} of the listeners to wait for."""
        return {"TCP": "tcp_address", "HTTP": "http_address"}

    def _effective(self) -> dict[str, Any]:
        """Return the options to start with. Addresses: the last ones, the given ones, loopback."""
        effective = dict(self._given)
        for label, name in self._listeners().items():
            effective[name] = self._addresses.get(label) or effective.get(name) or "127.0.0.1:0"
        return effective

    def _command(self) -> list[str]:
        if self._binary:
            command = [self._binary]
        else:
            command = [sys.executable, "-m", *self._module]
        for name, value in self._effective().items():
            command += flag_module.flag_text(self.options, name, value)
        return command

    def _wait_until_it_listens(self) -> None:
        process = self._child.process
        assert process is not None
        wanted = self._listeners()
        deadline = time.monotonic() + self._start_timeout
        while True:
            ended = process.poll() is not None
            found = dict(_LISTENING.findall(self.log))
            if wanted.keys() <= found.keys():
                break
            if ended:
                code = self.kill()
                raise ServerFailed(self._report(f"ended with exit code {code}"))
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(self._report(f"did not listen in {self._start_timeout:g} s"))
            # A file has no event to wait for, so the log is polled.
            time.sleep(_POLL_INTERVAL)
        for label, name in wanted.items():
            given_host, colon, _ = str(self._given.get(name) or "127.0.0.1:0").rpartition(":")
            port = found[label].rpartition(":")[2]
            self._addresses[label] = f"{given_host}:{port}" if colon else found[label]

    def _report(self, what: str) -> str:
        lines = self.log.strip().splitlines()[-20:]
        return "\n".join([f"{self.options.program} {what}; the end of its log:", *lines])


def _environment() -> dict[str, str]:
    """Return an environment in which the child finds this process's modules, and no others."""
    paths = [path or os.getcwd() for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
