"""nsq's own bench_reader and bench_writer, which run for a time and then print their rate.

The first argument is the folder of both programs. One connection, as all clients have here:
they make one for each CPU that Go may use.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

import measure
from measure import Order

# The queue must not run dry before the time is over: more than nsqd here ever delivers a second.
MOST_PER_SECOND = 1_000_000
MULTIPLES = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "\u00b5s": 1e-6}


def main() -> None:
    folder, order = Path(sys.argv[1]), Order(**json.loads(sys.argv[2]))
    if order.cpu is not None:
        os.sched_setaffinity(0, {order.cpu})
    command = ["", f"-nsqd-tcp-address={order.address}", f"-topic={order.topic}"]
    command += [f"-size={order.body_size}"]
    if order.kind == "consume":
        seconds = (order.warmup + order.messages) / MOST_PER_SECOND
        command[0] = str(folder / "bench_reader")
        command += [f"-channel={order.channel}", f"-rdy={order.max_in_flight}"]
    else:
        seconds = order.seconds
        command[0] = str(folder / "bench_writer")
        command += [f"-batch-size={order.batch}"]
    command.append(f"-runfor={seconds:.3f}s")
    server = measure.server_seconds(order.server_pid)
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    server_after = measure.server_seconds(order.server_pid)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"duration: ([\d.]+)(\D*?) - .*? ([\d.]+)ops/s", ran.stderr)
    if found is None:
        raise RuntimeError(f"{command[0]} said {ran.stderr!r}")
    wall = float(found[1]) * MULTIPLES[found[2]]
    result = {
        "messages": round(float(found[3]) * wall),
        "wall": wall,
        "user": used.ru_utime,
        "system": used.ru_stime,
        "server": None if server is None or server_after is None else server_after - server,
        "python": platform.python_version(),
        "versions": {"nsq": "1.3.0"},
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
