"""The metrics of a command that consumes: ``--metrics-address``, one page for each process.

Knows the command's Readers and Writers as objects; knows no framework. Loads prometheus_client only
where metrics are wanted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from gnsqsync import Observer, Reader, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.observer import each

if TYPE_CHECKING:
    from gnsqsync.prometheus import Metrics

__all__ = ["Exposed"]


class Exposed:
    """Metrics of a command, or nothing where ``address`` is None.

    ``address``: "PORT" or "HOST:PORT"; without a host 127.0.0.1, with port 0 one of the kernel's.
    ConfigError when it is not valid, or prometheus_client is not installed. Starts nothing.
    """

    def __init__(self, address: str | None) -> None:
        self._host, self._port = ("", 0) if address is None else _parse(address)
        self._metrics: Metrics | None = None
        if address is not None:
            self._metrics = _metrics()

    def observers(self, topic: str, channel: str, *others: object) -> list[Observer]:
        """For ``observer=`` of a Reader: ``others``, and one that counts."""
        given = [*each(others)]
        if self._metrics is not None and not self._metrics.counts(given):
            given.append(self._metrics.observer(topic, channel))
        return given

    @contextlib.contextmanager
    def serve(
        self,
        readers: list[Reader],
        number: int,
        say: Callable[[str], object],
        writers: Callable[[], Mapping[str, Writer]] = dict,
    ) -> Iterator[None]:
        """The page, while it is entered; in the process that is to start the Readers.

        ``number``: of the process, which is added to the port. ``writers``: asked here and not
        before, as a process has Writers of its own. ConfigError when the port is taken.
        """
        if self._metrics is None:
            yield
            return
        from prometheus_client import start_http_server

        for reader in readers:
            self._metrics.watch(reader)
        for name, writer in writers().items():
            self._metrics.watch(writer, name)
        port = self._port + number if self._port else 0
        if port > 65535:
            raise ConfigError(
                f"metrics at {self._host}:{port}: ports end with 65535; as each process takes the"
                " next one, give one that is lower"
            )
        try:
            server, thread = start_http_server(
                port, addr=self._host, registry=self._metrics.registry
            )
        except OSError as error:
            raise ConfigError(f"metrics at {self._host}:{port}: {error.strerror}") from error
        try:
            say(f"metrics at http://{self._host}:{server.server_port}/metrics")
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    # int() accepts digits of other scripts, and refuses some that isdigit() accepts.
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65535:
        raise ConfigError(f"the metrics address is {address!r}; it must be PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _metrics() -> Metrics:
    try:
        from gnsqsync.prometheus import Metrics
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics need {error.name}: pip install 'gnsqsync[prometheus]'"
        ) from None
    return Metrics.of()
