"""How many messages a second the embedded nsqd takes on disk, and whether its memory stays flat.

    python -m tests.bench.embedded_disk [--messages N] [--connections N] [--sync-every N]
    python -m tests.bench.embedded_disk --waiting 5000000

All messages go to disk (--mem-queue-size=0). Each connection publishes one message and waits for
its answer before the next. The server has one core, and the connections, which are one thread,
have another where there are two. ``--waiting`` publishes so many in MPUBs of 1,000, then takes
1,000 of them.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO

from tests.bench.embedded_throughput import connect, cpu_seconds, read_exactly, resident_bytes

_BATCH = 1000


def start_server(folder: str, *flags: str) -> tuple[subprocess.Popen[str], int]:
    """An nsqd with its data in ``folder``, and its port."""
    command = [sys.executable, "-m", "gnsqsync.embedded", "nsqd", f"-data-path={folder}"]
    command += ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "TCP: listening on" in line:
            threading.Thread(target=drain, args=(process.stderr,), daemon=True).start()
            return process, int(line.rsplit(":", 1)[1])
    raise SystemExit("the server did not start")


def drain(log: IO[str]) -> None:
    with log:
        log.read()


def publish(port: int, connections: int, messages: int, size: int) -> None:
    """``messages`` in all, each acknowledged before its connection sends the next one."""
    command = b"PUB bench\n" + struct.pack(">i", size) + bytes(size)
    selector = selectors.DefaultSelector()
    socks = [connect(port) for _ in range(connections)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ)
        sock.sendall(command)
    sent, answered = connections, 0
    while answered < messages:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            read_exactly(sock, 10)
            answered += 1
            if sent < messages:
                sock.sendall(command)
                sent += 1
    for sock in socks:
        sock.close()


def publish_batches(port: int, messages: int, size: int) -> None:
    body = struct.pack(">i", _BATCH) + (struct.pack(">i", size) + bytes(size)) * _BATCH
    command = b"MPUB bench\n" + struct.pack(">i", len(body)) + body
    sock = connect(port)
    for _ in range(messages // _BATCH):
        sock.sendall(command)
        read_exactly(sock, 10)
    sock.close()


def take(port: int, messages: int, size: int) -> None:
    """Consume so many."""
    sock = connect(port)
    sock.sendall(b"SUB bench c\nRDY 1\n")
    read_exactly(sock, 10)
    for _ in range(messages):
        data = b""
        while len(data) < 34 + size:
            data += sock.recv(34 + size - len(data))
        sock.sendall(b"FIN " + data[18:34] + b"\n")
    sock.close()


def waiting_memory(messages: int, size: int) -> list[int]:
    """What the server has in memory (bytes) before, after each tenth, and after some are taken."""
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        process, port = start_server(folder, "-mem-queue-size=0")
        try:
            publish_batches(port, _BATCH, size)
            found = [resident_bytes(process.pid)]
            for _ in range(10):
                publish_batches(port, messages // 10, size)
                found.append(resident_bytes(process.pid))
            take(port, 1000, size)
            found.append(resident_bytes(process.pid))
            return found
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def rate(messages: int, connections: int, size: int, sync_every: int) -> tuple[float, float]:
    """Acknowledged publishes a second, and CPU seconds of the server for each."""
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        process, port = start_server(folder, "-mem-queue-size=0", f"-sync-every={sync_every}")
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, cores[:1])
        os.sched_setaffinity(0, cores[1:] or cores)
        try:
            publish(port, connections, 2000, size)
            cpu, began = cpu_seconds(process.pid), time.perf_counter()
            publish(port, connections, messages, size)
            took = time.perf_counter() - began
            return messages / took, (cpu_seconds(process.pid) - cpu) / messages
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--sync-every", type=int, default=2500)
    parser.add_argument("--waiting", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.waiting:
        found = waiting_memory(arguments.waiting, arguments.size)
        print("MB of the server after each tenth:", *(f"{one / 1e6:.1f}" for one in found))
        return
    each_second, cpu = rate(
        arguments.messages, arguments.connections, arguments.size, arguments.sync_every
    )
    print(f"acknowledged: {each_second:,.0f}/s; server CPU {cpu * 1e6:.1f} µs a message")


if __name__ == "__main__":
    main()
