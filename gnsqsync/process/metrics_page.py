"""The metrics and the health of a consuming command, for each process: ``--metrics-address``.

Knows the command's Readers and Writers. Knows no framework. Loads prometheus_client only if metrics
are wanted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gnsqsync import Observer, Reader, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.observer import each
from gnsqsync.options import check_duration
from gnsqsync.process.metrics_address import (
    LIVE,
    READY,
    parse_metrics_address,
    port_of_process,
)
from gnsqsync.process.web_page import served, text_page
from gnsqsync.stats import Health

if TYPE_CHECKING:
    from gnsqsync.prometheus import Metrics

__all__ = ["Exposed"]

# Lower bound of a handler's limit, in seconds.
_SHORTEST_LIMIT = 0.001


class Exposed:
    """Metrics and health of a command, or nothing if ``address`` is None.

    ``address``: "PORT" or "HOST:PORT". The default host is 127.0.0.1; for port 0 the kernel chooses
    one. ``handler_limit``: seconds after which a running handler makes /livez fail; None: never.
    ConfigError if a value is not valid, or prometheus_client is not installed. Starts no thread.
    """

    def __init__(self, address: str | None, handler_limit: float | None = None) -> None:
        if handler_limit is not None:
            check_duration("--handler-limit", handler_limit, _SHORTEST_LIMIT)
            if address is None:
                raise ConfigError(
                    "--handler-limit needs --metrics-address too: it is /livez there that fails"
                    " when a handler runs longer"
                )
        self._handler_limit = handler_limit
        self._host, self._port = ("", 0) if address is None else parse_metrics_address(address)
        self._metrics: Metrics | None = None
        if address is not None:
            self._metrics = _metrics()

    def observers(self, topic: str, channel: str, *others: object) -> list[Observer]:
        """Return the observers of a Reader: ``others``, and one that counts for the metrics."""
        given = [*each(others)]
        if self._metrics is not None and not self._metrics.counts(given):
            given.append(self._metrics.observer(topic, channel))
        return given

    def watch(self, reader: Reader) -> None:
        """Show a Reader that was made while the pages are served."""
        if self._metrics is not None:
            self._metrics.watch(reader)

    @contextlib.contextmanager
    def serve(
        self,
        readers: list[Reader],
        number: int,
        say: Callable[[str], object],
        writers: Callable[[], Mapping[str, Writer]] = dict,
    ) -> Iterator[None]:
        """Serve the pages inside of the block, in the process that starts the Readers.

        ``number``: the process's number, which is added to the port. ``writers`` is called here and
        not before, because each process has its own Writers. ConfigError if the port is taken.
        """
        if self._metrics is None:
            yield
            return
        from prometheus_client import make_wsgi_app

        named = writers()
        for reader in readers:
            self._metrics.watch(reader)
        for name, writer in named.items():
            self._metrics.watch(writer, name)
        port = port_of_process(self._host, self._port, number)
        pages = {
            "/metrics": make_wsgi_app(self._metrics.registry),
            LIVE: text_page(lambda: _liveness(readers, named, self._handler_limit)),
            READY: text_page(lambda: _readiness(readers)),
        }
        with contextlib.ExitStack() as stack:
            try:
                port = stack.enter_context(served(self._host, port, pages))
            except OSError as error:
                raise ConfigError(f"metrics at {self._host}:{port}: {error.strerror}") from error
            say(f"metrics at http://{self._host}:{port}/metrics")
            yield


def _liveness(
    readers: Sequence[Reader], writers: Mapping[str, Writer], limit: float | None
) -> tuple[bool, list[str]]:
    parts = [reader.health(limit) for reader in readers]
    parts += [writer.health(f"the Writer {name}") for name, writer in writers.items()]
    health = Health.of(parts)
    return health.is_alive, health.stuck or ["alive"]


def _readiness(readers: Sequence[Reader]) -> tuple[bool, list[str]]:
    health = Health.of(reader.health() for reader in readers)
    return health.is_ready, [*health.not_ready] or ["ready"]


def _metrics() -> Metrics:
    try:
        from gnsqsync.prometheus import Metrics
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics need {error.name}: pip install 'gnsqsync[prometheus]'"
        ) from None
    return Metrics.of()
