"""Publishes at a steady rate, or at several one after another; each body begins with the time.

    python pacer.py ORDER       (JSON: address, topic, body_size, cpu, steps of [rate, messages])

PUB commands are sent without waiting for the OK of the one before; those that are due share a
send. Ends when nsqd has confirmed all.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

import rawnsq

# Above about two thousand a second, what is due within this time goes out together.
TURN = 0.0005
# In one send: nsqd's answers to them fit its buffers, which are read after it.
MOST = 1000


def main() -> None:
    order = json.loads(sys.argv[1])
    if order["cpu"] is not None:
        os.sched_setaffinity(0, {order["cpu"]})
    host, _, port = order["address"].rpartition(":")
    sock = rawnsq.connect((host, int(port)))
    padding = b"x" * (order["body_size"] - 8)
    head = f"PUB {order['topic']}\n".encode() + rawnsq.SIZE.pack(order["body_size"])
    sent, answers = 0, 0

    def read(timeout: float) -> None:
        nonlocal answers
        while select.select([sock], [], [], timeout)[0]:
            data = sock.recv(rawnsq.CHUNK)
            if not data:
                raise rawnsq.Refused("nsqd closed the connection")
            answers += len(data)
            timeout = 0

    due = time.monotonic()
    for rate, messages in order["steps"]:
        left = messages
        while left:
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(max(wait, TURN if rate > 1 / TURN else 0.0))
            number = 0
            now = time.monotonic()
            while due <= now and number < min(left, MOST):
                due += 1 / rate
                number += 1
            if number:
                stamp = time.time_ns().to_bytes(8, "big")
                sock.sendall((head + stamp + padding) * number)
                sent += number
                left -= number
                read(0)
    # A heartbeat is 21 bytes and comes every 30 seconds only, when all is long over.
    give_up = time.monotonic() + 10
    while answers < sent * len(rawnsq.OK) and time.monotonic() < give_up:
        read(0.1)
    if answers < sent * len(rawnsq.OK):
        raise rawnsq.Refused(f"{answers} bytes of answers to {sent} publishes")


if __name__ == "__main__":
    main()
