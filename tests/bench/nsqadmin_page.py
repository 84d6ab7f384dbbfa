"""How long nsqadmin's first page takes for many nsqds: cold, and while somebody watches.

    python -m tests.bench.nsqadmin_page [--topics 1000] [--nsqds 200] [--spread 10]

The nsqds and the one nsqlookupd are simulated, all in one process on another core where there is
one. Each topic is on ``--spread`` nsqds and has two channels. Cold is the first request to an
nsqadmin that has just said that it listens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from typing import Any

import requests

from tests.bench.embedded_throughput import cpu_seconds, resident_bytes

_LOOKS = 30


def channel(name: str, number: int) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": number % 7 * 10,
        "backend_depth": 0,
        "in_flight_count": number % 3,
        "deferred_count": 0,
        "message_count": number * 100,
        "requeue_count": number % 5,
        "timeout_count": 0,
        "client_count": number % 4,
        "clients": [],
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def topic(number: int) -> dict[str, Any]:
    return {
        "topic_name": f"topic-{number:05}",
        "channels": [channel("archive", number), channel("metrics", number + 1)],
        "depth": 0,
        "backend_depth": 0,
        "message_count": number * 100,
        "message_bytes": number * 20000,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def serve(topics: int, nsqds: int, spread: int, ready: Connection) -> None:
    """All servers of the cluster, until the process is killed. ``ready`` gets the nsqlookupd's."""
    from gevent.event import Event
    from gevent.pywsgi import WSGIServer

    if len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    def start(answers: dict[str, Any]) -> int:
        server = WSGIServer(("127.0.0.1", 0), application(answers), log=None)
        server.start()
        port: int = server.server_port
        return port

    producers = []
    for number in range(nsqds):
        mine = [topic(each) for each in range(topics) if (number - each) % nsqds < spread]
        port = start({"/stats": {"version": "1.3.0", "topics": mine}})
        producers.append(
            {
                "remote_address": f"127.0.0.1:{port}",
                "hostname": f"host-{number}",
                "broadcast_address": "127.0.0.1",
                "tcp_port": port,
                "http_port": port,
                "version": "1.3.0",
                "tombstones": [False] * len(mine),
                "topics": [each["topic_name"] for each in mine],
            }
        )
    ready.send(f"127.0.0.1:{start({'/nodes': {'producers': producers}})}")
    Event().wait()


def application(answers: dict[str, Any]) -> Any:
    bodies = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = bodies[environ["PATH_INFO"]]
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    return answer


def start_nsqadmin(lookupd: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "gnsqsync.admin", f"-lookupd-http-address={lookupd}"]
    command += ["-http-address=127.0.0.1:0", "-log-level=info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "HTTP: listening on" in line:
            # Nobody reads the rest: it would fill the pipe.
            address = line.rsplit(" ", 1)[1].strip()
            requests.put(f"http://{address}/config/log_level", b"error", timeout=10)
            return process, f"http://{address}/"
    raise SystemExit("nsqadmin did not start")


def look(session: requests.Session, url: str) -> tuple[float, str]:
    began = time.perf_counter()
    answer = session.get(url, timeout=60)
    answer.raise_for_status()
    return time.perf_counter() - began, answer.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--nsqds", type=int, default=200)
    parser.add_argument("--spread", type=int, default=10)
    given = parser.parse_args()
    ours, theirs = Pipe()
    cluster = Process(
        target=serve, args=(given.topics, given.nsqds, given.spread, theirs), daemon=True
    )
    cluster.start()
    nsqadmin, url = start_nsqadmin(ours.recv())
    try:
        with requests.Session() as session:
            cold, text = look(session, url)
            if f"{given.topics:,} topics on {given.nsqds} nsqds" not in text:
                print("the first answer does not have all topics yet")
            warm = []
            cpu, began = cpu_seconds(nsqadmin.pid), time.monotonic()
            for _ in range(_LOOKS):
                time.sleep(0.5)
                warm.append(look(session, url)[0])
            cpu = (cpu_seconds(nsqadmin.pid) - cpu) / (time.monotonic() - began)
            print(
                f"{given.topics} topics, each on {given.spread} of {given.nsqds} nsqds:"
                f" cold {cold:.2f} s; then median {statistics.median(warm) * 1000:.0f} ms,"
                f" most {max(warm) * 1000:.0f} ms of {_LOOKS}; {len(text) / 1000:.0f} kB;"
                f" nsqadmin uses {cpu:.0%} of a core and"
                f" {resident_bytes(nsqadmin.pid) / 1e6:.0f} MB"
            )
    finally:
        nsqadmin.terminate()
        nsqadmin.wait()
        cluster.kill()
        cluster.join()


if __name__ == "__main__":
    main()
