"""The metrics of a command that consumes, and its health: ``--metrics-address``, for each process.

Knows the command's Readers and Writers as objects; knows no framework. Loads prometheus_client only
where metrics are wanted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gnsqsync import Observer, Reader, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.observer import each
from gnsqsync.options import check_duration
from gnsqsync.service.metrics_address import (
    LIVE,
    READY,
    parse_metrics_address,
    port_of_process,
)
from gnsqsync.service.web_page import served, text_page

if TYPE_CHECKING:
    from gnsqsync.prometheus import Metrics

__all__ = ["Exposed"]

# The shortest limit for a handler, in seconds.
_SHORTEST_LIMIT = 0.001


class Exposed:
    """Metrics and health of a command, or nothing where ``address`` is None.

    ``address``: "PORT" or "HOST:PORT"; without a host 127.0.0.1, with port 0 one of the kernel's.
    ``handler_limit``: seconds after which a handler makes /livez fail; None: it may run for ever.
    ConfigError when one is not valid, or prometheus_client is not installed. Starts nothing.
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
        """For ``observer=`` of a Reader: ``others``, and one that counts."""
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
        """The pages, while it is entered; in the process that is to start the Readers.

        ``number``: of the process, which is added to the port. ``writers``: asked here and not
        before, as a process has Writers of its own. ConfigError when the port is taken.
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
    stuck = [line for reader in readers for line in reader._stuck(limit)]
    for name, writer in writers.items():
        stuck += writer._stuck(f"the Writer {name}")
    return not stuck, stuck or ["alive"]


def _readiness(readers: Sequence[Reader]) -> tuple[bool, list[str]]:
    reasons = [why for reader in readers if (why := reader._not_ready()) is not None]
    return not reasons, reasons or ["ready"]


def _metrics() -> Metrics:
    try:
        from gnsqsync.prometheus import Metrics
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics need {error.name}: pip install 'gnsqsync[prometheus]'"
        ) from None
    return Metrics.of()
