"""How ours behaves when there is more of something: curves, and how busy workers are kept.

connections: one Reader and so many nsqds, each with its share of the messages. One small program
plays them, as a hundred real ones would take the CPU from the client.
topics: one nsqd, a ReaderGroup of so many Readers, which share one max_in_flight, with both kinds
of latency on threads.
processes: ``gnsqsync consume --processes N`` with a handler that computes for 100 us.
sizes: bodies from 10 bytes to 1 MiB, ours beside the floor. handlers: time and concurrency.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.clients import REPOSITORY
from tests.bench.progress import Progress
from tests.bench.report import short
from tests.bench.rows import Row
from tests.bench.server import Server
from tests.support.simulated import ManyNsqds

COUNTS = (1, 10, 100)
CONNECTIONS = (*COUNTS, 300)
# A thousand threads that read are too many for one process; a thousand greenlets are not.
TOPICS = (
    *(("ours", count, latency) for count in COUNTS for latency in ("adaptive", "throughput")),
    *(("ours-gevent", count, "adaptive") for count in (*COUNTS, 1000)),
)
PROCESSES = (1, 2, 4)
SIZES = (10, 100, 1000, 10_000, 100_000, 2**20)
HANDLER_SECONDS = (0.0, 10e-6, 1e-3, 50e-3)
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
SPREAD_MESSAGES = 120_000
PROCESS_MESSAGES = 30_000
MOST_OF_A_SIZE = 150_000_000  # bytes
SECONDS = 1.0

BUSY_HANDLER = "tests.bench.runners.computing:handler"


def run(bench: Bench, program: Path, progress: Progress) -> dict[str, Any]:
    """One list of points a curve."""
    parts: dict[str, tuple[int, Callable[[], list[dict[str, Any]]]]] = {
        "connections": (2 * len(CONNECTIONS), lambda: connections(bench, progress)),
        "topics": (len(TOPICS), lambda: topics(bench, progress)),
        "processes": (len(PROCESSES), lambda: processes(program, progress)),
        "sizes": (4 * len(SIZES), lambda: sizes(bench, progress)),
        "handlers": (
            len(HANDLER_SECONDS) * len(CONCURRENCY),
            lambda: handlers(bench, progress),
        ),
    }
    progress.total(sum(cells for cells, _ in parts.values()))
    return {name: measure() for name, (_, measure) in parts.items()}


def _consuming(**more: Any) -> Row:
    (row,) = (row for row in rows.ROWS if row.name == "consume-2500-workers")
    return replace(row, **more)


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "rate": found["messages"] / found["wall"],
        "micros": (found["user"] + found["system"]) / found["messages"] * 1e6,
    }


def connections(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    points = []
    for client, count in itertools.product(clients.select(["ours", "ours-gevent"]), CONNECTIONS):
        progress.begin(f"scale: {count} connections, {client.name}")
        with ManyNsqds(count, size=200) as many:
            many.create("bench", "bench")
            # The end is left out: there nsqds run dry one after another.
            row = _consuming(warm=SPREAD_MESSAGES // 5)
            order = replace(
                bench.order(bench.layouts[-1], row, client, SPREAD_MESSAGES // 2),
                address=",".join(many.tcp_addresses),
                topic="bench",
                channel="bench",
                server_pid=many.pid,
            )
            with ThreadPoolExecutor(1) as pool:
                # When all are connected, so that connecting is not measured.
                filled = pool.submit(_fill, many, count)
                found = bench.child(client, order)
                filled.result()
        points.append({"count": count, "client": client.name, **_figures(found)})
    return points


def _fill(many: ManyNsqds, count: int) -> None:
    give_up = time.monotonic() + 60
    while many.counts()["subscriptions"] < count:
        if time.monotonic() > give_up:
            raise RuntimeError(f"fewer than {count} subscriptions after a minute")
        time.sleep(0.02)
    many.fill("bench", SPREAD_MESSAGES // count)


def topics(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    layout = bench.layouts[-1]
    server = bench.servers[layout.name]
    points = []
    for name, count, latency in TOPICS:
        (client,) = clients.select([name])
        progress.begin(f"scale: {count} topics, {name}, {latency}")
        names = [f"scale-{name}-{count}-{latency}-{number}" for number in range(count)]
        for topic in names:
            server.create(topic, "bench")
            server.feed(topic, "bench", SPREAD_MESSAGES // count, b"x" * 200)
        row = _consuming(warm=SPREAD_MESSAGES // 5, latency=latency)
        order = replace(
            bench.order(layout, row, client, SPREAD_MESSAGES // 2),
            topic=",".join(names),
            channel="bench",
        )
        point = {"count": count, "client": name, "latency": latency}
        points.append({**point, **_figures(bench.child(client, order))})
        for topic in names:
            server.delete(topic)
    return points


def kind_of(point: Mapping[str, Any]) -> str:
    """What else a point of connections or topics says, as the end of its name."""
    on = ", on greenlets" if point.get("client") == "ours-gevent" else ""
    return f"{on}, latency {point['latency']}" if "latency" in point else on


def processes(program: Path, progress: Progress) -> list[dict[str, Any]]:
    points = []
    for count in PROCESSES:
        progress.begin(f"scale: {count} processes")
        with Server(program, None) as server:
            server.create("bench", "bench")
            server.feed("bench", "bench", PROCESS_MESSAGES, b"x" * 200)
            command = [sys.executable, "-m", "gnsqsync.cli", "consume", "bench", "bench"]
            command += [BUSY_HANDLER, "--nsqd-tcp-address", server.tcp_address]
            command += ["--processes", str(count), "--max-in-flight", "200"]
            child = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
            try:
                rate = _rate_between(server, PROCESS_MESSAGES * 4 // 5, PROCESS_MESSAGES // 5)
            finally:
                child.send_signal(signal.SIGTERM)
                child.wait(60)
        points.append({"count": count, "rate": rate})
    return points


def _rate_between(server: Server, high: int, low: int) -> float:
    """Messages a second from when ``high`` were left until ``low`` were."""
    began: tuple[float, int] | None = None
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        left, now = server.left("bench"), time.monotonic()
        if began is None and left <= high:
            began = now, left
        if began is not None and left <= low:
            return (began[1] - left) / (now - began[0])
        time.sleep(0.02)
    raise RuntimeError(f"after two minutes {left} messages were left")


def sizes(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    layout = bench.layouts[0]
    points = []
    for kind in ("consume", "publish"):
        for size in SIZES:
            for client in clients.select(["ours", "floor"]):
                progress.begin(f"scale: {kind} {size} bytes {client.name}")
                if kind == "consume":
                    flight = min(2500, max(20, MOST_OF_A_SIZE // 10 // size))
                    row = _consuming(
                        workers=1, body_size=size, max_in_flight=flight, warm=2 * flight
                    )
                    messages = min(100_000, MOST_OF_A_SIZE // size)
                else:
                    row = Row("size", "", "publish", body_size=size, warm=10)
                    messages = min(10_000, MOST_OF_A_SIZE // size)
                found = bench.measure(layout, row, client, messages)
                points.append(
                    {"kind": kind, "size": size, "client": client.name, **_figures(found)}
                )
    return points


def handlers(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    (ours,) = clients.select(["ours"])
    points = []
    for seconds in HANDLER_SECONDS:
        for workers in CONCURRENCY:
            progress.begin(f"scale: handler {seconds * 1e6:g} us, concurrency {workers}")
            if seconds >= 0.0005:
                messages = max(4 * workers, round(SECONDS * workers / seconds))
            else:
                messages = 50_000
            row = _consuming(
                workers=workers, handler_seconds=seconds, warm=max(2 * workers, messages // 5)
            )
            found = bench.measure(bench.layouts[-1], row, ours, messages)
            busy = {
                name: found[name]
                for name in ("busy", "most_idle", "fewest", "most")
                if name in found
            }
            points.append({"seconds": seconds, "workers": workers, **_figures(found), **busy})
    return points


def table(found: dict[str, Any]) -> str:
    lines = []
    for name in ("connections", "topics", "processes"):
        for point in found[name]:
            micros = f", {short(point['micros'])} us/msg" if "micros" in point else ""
            lines.append(
                f"  {point['count']:>4} {name}{kind_of(point)}: {point['rate']:,.0f} msg/s{micros}"
            )
    for point in found["sizes"]:
        lines.append(
            f"  {point['kind']} {point['size']:>7} bytes, {point['client']:<5}:"
            f" {point['rate']:,.0f} msg/s, {short(point['micros'])} us/msg,"
            f" {point['rate'] * point['size'] / 1e6:,.1f} MB/s"
        )
    for point in found["handlers"]:
        text = f"  handler {point['seconds'] * 1e6:>6g} us, concurrency {point['workers']:>2}:"
        text += f" {point['rate']:,.0f} msg/s"
        if "busy" in point:
            text += f", workers busy {point['busy'] * 100:.1f} %,"
            text += f" {point['fewest']}..{point['most']} messages each,"
            text += f" idle at most {point['most_idle'] * 1000:.1f} ms"
        lines.append(text)
    return "\n".join(lines) + "\n"
