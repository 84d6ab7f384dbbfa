"""The process that imports modules, and forks for each program that a test asks it for.

``python -m tests.support.forked <control> <module> ...`` reads requests from a socket. Knows
processes; knows neither pytest, which its forks would have imported, nor the modules.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

__all__ = ["LONGEST_REQUEST", "NUMBER"]

# A pid, then the status of its end.
NUMBER = struct.Struct("i")
LONGEST_REQUEST = 1 << 20


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Return the request in the fork, and None at the end of the tests."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _tell_end(key.fd, *running.pop(key.fd))
                    continue
                data, (*received,), _, _ = socket.recv_fds(control, LONGEST_REQUEST, 1)
                if not data:
                    return None
                (ends,) = received
                pid = os.fork()
                if not pid:
                    # First, so that who has the number can end all that the program will start.
                    os.setsid()
                    os.write(ends, NUMBER.pack(os.getpid()))
                    for number in [ends, *running, *(theirs for _, theirs in running.values())]:
                        os.close(number)
                    request: dict[str, Any] = json.loads(data)
                    return request
                watched = _watch(pid)
                running[watched] = pid, ends
                selector.register(watched, selectors.EVENT_READ)


def _watch(pid: int) -> int:
    """Return a descriptor that is readable after the end of the process."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    # A Python that was built for older systems has no such function. The number of the system call
    # is the same on all processors.
    import ctypes

    watched: int = ctypes.CDLL(None, use_errno=True).syscall(434, pid, 0)
    if watched < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.set_inheritable(watched, False)
    return watched


def _tell_end(watched: int, pid: int, ends: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(watched)
    try:
        os.write(ends, NUMBER.pack(status))
    except BrokenPipeError:
        pass  # nobody waits for it
    os.close(ends)


def _become(request: dict[str, Any]) -> None:
    """Be the program of a request until its end, which is the end of this process."""
    for number, path in enumerate(request["files"]):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    # In place of the folder in which this process began, as for a script and for -m.
    sys.path[0] = request["folder"]
    words = request["words"]
    # With this, a program starts itself once more.
    sys.orig_argv = [sys.executable, "-W", "error", *words]
    if words[0] == "-m":
        sys.argv = words[1:]  # runpy puts the module's file first
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def main(number: str, *modules: str) -> None:
    control = socket.socket(fileno=int(number))
    # Tests that nohup began ignore SIGHUP. A program does not inherit that here.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for module in modules:
        importlib.import_module(module)
    # A collection in a fork would write to, and so copy, all that was imported.
    gc.collect()
    gc.freeze()
    with control:
        request = _serve(control)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main(*sys.argv[1:])
