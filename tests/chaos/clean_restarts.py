"""``python -m tests.chaos.clean_restarts``: real nsqds end cleanly while somebody publishes slowly.

Each is ended by SIGTERM and started again on its port and data, 200 times in all by default, while
one task publishes at a fixed gap. A proxy in between notes when it passed nsqd's EOF on; a runtime
notes when the Writer gave bytes to the kernel. A publish in doubt whose bytes were given before the
EOF was under way, which is rightly unknown; one whose bytes were given behind it is a failure.
The exit status is 1 when there is one.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsqsync import Writer
from gnsqsync.errors import NotSent, OutcomeUnknown
from gnsqsync.runtime import choose
from tests.support.counting import CountingRuntime
from tests.support.faultproxy import DOWN, FaultProxy
from tests.support.servers import Server

GAPS = (0.005, 0.02, 0.05, 0.1)
NSQDS = (1, 2)
WORLDS = ("threads", "gevent")
# How long nsqd runs before the next end, so that publishes find it again.
SETTLE_SECONDS = 0.7


class Noting(CountingRuntime):
    """Notes when bytes were last given to the kernel, and by which socket."""

    last_sent = (0.0, "")

    def connect(self, *args: Any, **options: Any) -> Any:
        sock: Any = super().connect(*args, **options)
        send = sock.send

        def noting(data: bytes) -> int:
            self.last_sent = (time.monotonic(), sock.local)
            taken: int = send(data)
            return taken

        sock.send = noting
        return sock


@dataclass
class Count:
    """What became of the publishes of one stream."""

    restarts: int = 0
    published: int = 0
    not_sent: int = 0
    # In doubt: given to the kernel before nsqd's EOF, and behind it.
    under_way: int = 0
    behind_the_end: int = 0


def sleeper(world: str) -> Callable[[float], object]:
    if world == "gevent":
        import gevent

        return gevent.sleep  # type: ignore[no-any-return]
    return time.sleep


def ended_before(proxies: Sequence[FaultProxy], moment: float, local: str) -> bool:
    """Whether nsqd's EOF had been passed on to this end of a connection by then."""
    host, _, port = local.rpartition(":")
    for proxy in proxies:
        ends = proxy.ended_at.get((host, int(port)), {})
        if DOWN in ends:
            return ends[DOWN] < moment
    # A reset link, or one whose end has not been passed on.
    return False


def stream(world: str, nsqds: int, gap: float, restarts: int) -> Count:
    """Publish at one gap until so many restarts are over."""
    count = Count()
    servers = [Server("real", "nsqd").start() for _ in range(nsqds)]
    proxies = [FaultProxy(server.tcp_address) for server in servers]
    over = threading.Event()
    failures: list[BaseException] = []

    def restart() -> None:
        try:
            for number in range(restarts):
                time.sleep(SETTLE_SECONDS)
                servers[number % nsqds].restart()
                count.restarts += 1
            time.sleep(SETTLE_SECONDS)
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()

    restarter = threading.Thread(target=restart, name="restarter", daemon=True)
    runtime = Noting(choose(world))
    sleep = sleeper(world)
    try:
        with Writer([proxy.text for proxy in proxies], runtime=runtime) as writer:
            writer.connect()
            restarter.start()
            while not over.is_set():
                try:
                    writer.publish("restarts", "x", timeout=20.0)
                    count.published += 1
                except NotSent:
                    count.not_sent += 1
                except OutcomeUnknown:
                    if ended_before(proxies, *runtime.last_sent):
                        count.behind_the_end += 1
                    else:
                        count.under_way += 1
                sleep(gap)
    finally:
        restarter.join()
        for proxy in proxies:
            proxy.close()
        for server in servers:
            server.discard()
    if failures:
        raise failures[0]
    return count


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.clean_restarts")
    parser.add_argument("--restarts", type=int, default=200, help="in all; 200 by default")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    chosen = parser.parse_args(argv)
    worlds = chosen.worlds.split(",")
    logging.getLogger("gnsqsync").setLevel(logging.CRITICAL)
    cells = [(world, nsqds, gap) for world in worlds for nsqds in NSQDS for gap in GAPS]
    failed = 0
    print("world    nsqds  gap ms  restarts  published  not sent  under way  behind the end")
    for number, (world, nsqds, gap) in enumerate(cells):
        share = (number + 1) * chosen.restarts // len(cells) - number * chosen.restarts // len(
            cells
        )
        if not share:
            continue
        count = stream(world, nsqds, gap, share)
        failed += count.behind_the_end
        print(
            f"{world:<8} {nsqds:>5} {gap * 1000:>7.0f} {count.restarts:>9} {count.published:>10}"
            f" {count.not_sent:>9} {count.under_way:>10} {count.behind_the_end:>15}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
