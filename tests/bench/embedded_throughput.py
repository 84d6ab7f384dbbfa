"""How many messages a second the embedded nsqd takes and delivers, and what a waiting one costs.

    python -m tests.bench.embedded_throughput [--messages N] [--size BYTES] [--rdy N]

One producer sends single PUBs, pipelined; one consumer reads and sends FIN for each. Both are
threads of this process on plain sockets; the figure that counts is the server's own CPU time.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

_WINDOW = 2000


def start_server() -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "gnsqsync.embedded", "nsqd"]
    command += ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "TCP: listening on" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(line.rsplit(":", 1)[1])
    raise SystemExit("the server did not start")


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(b"  V2")
    return sock


def read_exactly(sock: socket.socket, size: int) -> None:
    while size > 0:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise RuntimeError("the server closed the connection")
        size -= len(part)


def publish(port: int, messages: int, size: int) -> None:
    command = b"PUB bench\n" + struct.pack(">i", size) + bytes(size)
    sock = connect(port)
    sent = answered = 0
    while answered < messages:
        if sent < messages:
            count = min(100, messages - sent)
            sock.sendall(command * count)
            sent += count
        if sent == messages or sent - answered >= _WINDOW:
            read_exactly(sock, 10 * min(100, sent - answered))
            answered += min(100, sent - answered)
    sock.close()


def consume(port: int, messages: int, rdy: int, result: dict[str, Any]) -> None:
    sock = connect(port)
    sock.sendall(b"SUB bench c\nRDY %d\n" % rdy)
    buffer = b""
    seen = 0
    while seen < messages:
        part = sock.recv(1 << 18)
        if not part:
            raise RuntimeError("the server closed the connection")
        buffer += part
        answers = []
        offset = 0
        while len(buffer) - offset >= 4:
            (size,) = struct.unpack_from(">i", buffer, offset)
            if len(buffer) - offset < 4 + size:
                break
            if buffer[offset + 7] == 2:
                answers.append(b"FIN " + buffer[offset + 18 : offset + 34] + b"\n")
            offset += 4 + size
        buffer = buffer[offset:]
        seen += len(answers)
        if answers:
            sock.sendall(b"".join(answers))
    result["done"] = time.perf_counter()
    sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rdy", type=int, default=200)
    arguments = parser.parse_args()
    process, port = start_server()
    try:
        result: dict[str, Any] = {}
        consumer = threading.Thread(
            target=consume, args=(port, arguments.messages, arguments.rdy, result)
        )
        consumer.start()
        began, cpu = time.perf_counter(), cpu_seconds(process.pid)
        publish(port, arguments.messages, arguments.size)
        consumer.join()
        took = result["done"] - began
        cpu = cpu_seconds(process.pid) - cpu
        rate, per_message = arguments.messages / took, cpu / arguments.messages * 1e6
        print(f"published and consumed: {rate:,.0f}/s; server CPU {per_message:.1f} µs a message")

        before, cpu, began = resident_bytes(process.pid), cpu_seconds(process.pid), time.time()
        publish(port, arguments.messages, arguments.size)
        took, cpu = time.time() - began, cpu_seconds(process.pid) - cpu
        each = (resident_bytes(process.pid) - before) / arguments.messages
        rate, per_message = arguments.messages / took, cpu / arguments.messages * 1e6
        print(f"published only: {rate:,.0f}/s; server CPU {per_message:.1f} µs a message")
        print(f"memory: {each:.0f} bytes a waiting message of {arguments.size} bytes")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


if __name__ == "__main__":
    main()
