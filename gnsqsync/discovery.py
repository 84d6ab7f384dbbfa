"""Poll threads, one for each nsqlookupd. Tells what is listed; closes nothing, dials nothing."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from gnsqsync.addresses import Address
from gnsqsync.errors import HTTPError, NSQError
from gnsqsync.net.http import LookupdHTTP
from gnsqsync.runtime import Runtime, Task

__all__ = ["Discovery"]

log = logging.getLogger("gnsqsync.lookupd")

# A lookupd that failed is asked again after 1, 2, 4 ... seconds, at most the poll interval.
_FIRST_RETRY = 1.0


class Discovery:
    """Asks every nsqlookupd for the producers of a topic, each on a thread of its own.

    All are asked in each round and their answers merged by the receiver, so a dead or lying one
    delays nothing. Each wait is jittered anew, so that consumers started together drift apart.
    """

    def __init__(
        self,
        topic: str,
        urls: Sequence[str],
        found: Callable[[str, set[Address]], None],
        runtime: Runtime,
        *,
        interval: float,
        jitter: float,
        rng: random.Random,
    ) -> None:
        self._topic = topic
        self._urls = tuple(urls)
        self._found = found
        self._runtime = runtime
        self._interval = interval
        self._jitter = jitter
        self._rng = rng
        self._stopped = runtime.event()
        self._tasks: list[Task] = []

    def start(self) -> None:
        for url in self._urls:
            client = LookupdHTTP(url, runtime=self._runtime)
            self._tasks.append(
                self._runtime.spawn(f"nsq-lookup {client.url}", self._poll, url, client)
            )

    def stop(self) -> None:
        """Wake all poll threads, which then end; a query under way ends by its own timeout."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        deadline = self._runtime.now() + timeout
        for task in self._tasks:
            task.join(max(0.0, deadline - self._runtime.now()))

    def _poll(self, url: str, client: LookupdHTTP) -> None:
        failures = 0
        last_error = ""
        with client:
            while not self._stopped.is_set():
                try:
                    addresses = self._ask(client)
                except NSQError as error:
                    failures += 1
                    if str(error) != last_error:
                        last_error = str(error)
                        log.warning("lookup of %s failed: %s", self._topic, error)
                except Exception:
                    # A poll thread that dies ends discovery for good.
                    failures += 1
                    log.exception("lookup of %s at %s failed", self._topic, client.url)
                else:
                    if failures:
                        log.info("lookup of %s works again at %s", self._topic, client.url)
                    failures, last_error = 0, ""
                    if not self._stopped.is_set():
                        self._found(url, addresses)
                self._stopped.wait(self._pause(failures))

    def _pause(self, failures: int) -> float:
        pause = self._interval
        if failures:
            pause = min(pause, _FIRST_RETRY * 2.0 ** min(failures - 1, 16))
        return pause * (1 + self._jitter * (self._rng.random() - 0.5))

    def _ask(self, client: LookupdHTTP) -> set[Address]:
        try:
            result = client.lookup(self._topic)
        except HTTPError as error:
            if error.status == 404:
                # The normal state before the first publish.
                log.debug("%s does not know topic %s yet", client.url, self._topic)
                return set()
            raise
        return {Address(p.broadcast_address, p.tcp_port) for p in result.producers}
