"""An nsqd or nsqlookupd as a child process: the embedded server, or a real binary.

Imports neither gevent nor a server, so it may be used in any process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Unpack

from gnsqsync.daemon.parent import EXIT_WITH_PARENT
from gnsqsync.daemon.process import ServerFailed, ServerProcess
from gnsqsync.embedded.options import LookupdFlags, LookupdOptions, NsqdFlags, NsqdOptions

__all__ = ["Nsqd", "Nsqlookupd", "ServerFailed"]


class _TCPServer(ServerProcess):
    options: ClassVar[type[NsqdOptions] | type[LookupdOptions]]

    @property
    def tcp_address(self) -> str:
        """``host:port`` of the TCP listener, or the path of its socket. ``restart()`` keeps it."""
        return self._address("TCP")

    def _effective(self) -> dict[str, Any]:
        effective = super()._effective()
        if not effective.get("broadcast_address"):
            bound = self.options(tcp_address=effective["tcp_address"])
            effective["broadcast_address"] = bound.broadcast_address
        return effective


class Nsqd(_TCPServer):
    """An nsqd for development and tests, in a child process: ``with Nsqd() as nsqd: ...``.

    Args:
        tcp_address: ``host:port``. None (the default): a port of 127.0.0.1 that the kernel chooses.
            ``restart()`` keeps the port.
        http_address: ``host:port`` for HTTP; None as for ``tcp_address``. An empty str: no HTTP.
        lookupd_tcp_addresses: The nsqlookupds to register with: a str or an iterable of str.
        data_path: The folder of the data. None (the default): a temporary folder.
        binary: The path of a real nsqd, which is started instead. None: the embedded one.
        start_timeout: Seconds in which the server must listen.
        **flags: nsqd's flags with ``_`` for ``-``: durations in seconds, sizes in bytes, repeated
            flags as lists.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        One thread at a time may call it.
    """

    options: ClassVar[type[NsqdOptions]] = NsqdOptions
    _module: ClassVar[Sequence[str]] = ("gnsqsync.embedded", EXIT_WITH_PARENT, "nsqd")

    def __init__(
        self,
        *,
        tcp_address: str | None = None,
        http_address: str | None = None,
        lookupd_tcp_addresses: str | Iterable[str] = (),
        data_path: str | os.PathLike[str] | None = None,
        binary: str | None = None,
        start_timeout: float = 30.0,
        **flags: Unpack[NsqdFlags],
    ) -> None:
        if isinstance(lookupd_tcp_addresses, str):
            lookupd_tcp_addresses = [lookupd_tcp_addresses]
        lookupds = list(lookupd_tcp_addresses)
        given = {**flags, "lookupd_tcp_address": lookupds} if lookupds else {**flags}
        addresses = {"tcp_address": tcp_address, "http_address": http_address}
        super().__init__(addresses, binary, start_timeout, given)
        self._data_path = None if data_path is None else os.path.abspath(data_path)

    @property
    def https_address(self) -> str:
        """``host:port`` of the HTTPS listener. ServerFailed without ``tls_cert``."""
        return self._address("HTTPS")

    @property
    def data_path(self) -> str:
        """The folder of the data. A temporary folder exists until ``close()``."""
        return self._data_path or os.path.join(self._child.folder, "data")

    def _listeners(self) -> dict[str, str]:
        listeners = super()._listeners()
        if self._given.get("http_address") == "":
            del listeners["HTTP"]
        if self._given.get("tls_cert"):
            listeners["HTTPS"] = "https_address"
        return listeners

    def _effective(self) -> dict[str, Any]:
        os.makedirs(self.data_path, exist_ok=True)
        return {**super()._effective(), "data_path": self.data_path}


class Nsqlookupd(_TCPServer):
    """An nsqlookupd for development and tests, in a child process.

    Args:
        tcp_address: ``host:port``. None (the default): a port of 127.0.0.1 that the kernel chooses.
            ``restart()`` keeps the port.
        http_address: ``host:port`` for HTTP; None as for ``tcp_address``.
        binary: The path of a real nsqlookupd, which is started instead. None: the embedded one.
        start_timeout: Seconds in which the server must listen.
        **flags: nsqlookupd's flags with ``_`` for ``-``: durations in seconds.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        One thread at a time may call it.
    """

    options: ClassVar[type[LookupdOptions]] = LookupdOptions
    _module: ClassVar[Sequence[str]] = ("gnsqsync.embedded", EXIT_WITH_PARENT, "nsqlookupd")

    def __init__(
        self,
        *,
        tcp_address: str | None = None,
        http_address: str | None = None,
        binary: str | None = None,
        start_timeout: float = 30.0,
        **flags: Unpack[LookupdFlags],
    ) -> None:
        addresses = {"tcp_address": tcp_address, "http_address": http_address}
        super().__init__(addresses, binary, start_timeout, {**flags})
