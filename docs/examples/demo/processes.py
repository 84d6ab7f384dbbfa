"""Runs the parts of a demonstration as child processes, and ends them together.

A stand-in for systemd, Docker or the like: a part that is killed is started again.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

STOP = (signal.SIGINT, signal.SIGTERM)
# Seconds from SIGTERM to SIGKILL.
PATIENCE = 15.0


class Processes:
    """``with Processes(environment) as processes:`` the children end with it, the last one first.

    ``environment`` is that of every child. Inside, SIGINT and SIGTERM make ``wait()`` return False.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        # The number of each signal comes out of the socket as a byte.
        self._numbers, self._into = socket.socketpair()
        self._into.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._into.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None) for number in (*STOP, signal.SIGCHLD)
        }
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in reversed(self._running):
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._numbers.close()
        self._into.close()

    def run(self, *command: str) -> None:
        """One that ends by itself. CalledProcessError when it fails."""
        child = self._popen(command)
        if code := child.wait():
            raise subprocess.CalledProcessError(code, command)

    def start(self, *command: str) -> None:
        """One that is to run all the time."""
        self._running.append(self._popen(command))

    def wait_for_port(self, port: int) -> None:
        """Until somebody listens there. CalledProcessError when a child fails instead."""
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                # A port has no event to wait for.
                time.sleep(0.05)
            self._look_after_children()

    def wait(self) -> bool:
        """Until a process has ended, True, or a signal has come, False.

        A child that was killed runs again then. CalledProcessError when one has failed.
        """
        if not set(STOP).isdisjoint(self._numbers.recv(64)):
            return False
        self._look_after_children()
        return True

    def _look_after_children(self) -> None:
        for place, child in enumerate(self._running):
            code = child.poll()
            if code is None:
                continue
            assert isinstance(child.args, Sequence)
            if code > 0:
                raise subprocess.CalledProcessError(code, child.args)
            print(f"process {child.pid} ended; starting it again", file=sys.stderr, flush=True)
            self._running[place] = self._popen(child.args)

    def _popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # In a session of its own, as Ctrl-C at the terminal is for the parent, which passes it on.
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
