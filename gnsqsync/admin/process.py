"""nsqadmin as a child process, for development and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from gnsqsync.admin.options import AdminOptions
from gnsqsync.daemon.parent import EXIT_WITH_PARENT
from gnsqsync.daemon.process import ServerFailed, ServerProcess

__all__ = ["Nsqadmin", "ServerFailed"]


class Nsqadmin(ServerProcess):
    """An nsqadmin for development and tests, in a child process: ``with Nsqadmin(...) as admin:``.

    Args:
        http_address: ``host:port``. None (the default): a port of 127.0.0.1 that the kernel
            chooses. ``restart()`` keeps the port.
        lookupd_http_addresses: The nsqlookupds to ask: a str or an iterable of str.
        nsqd_http_addresses: The nsqds to ask, if no nsqlookupds are given.
        binary: The path of a real nsqadmin, which is started instead of this one. None: this one.
        start_timeout: Seconds in which the server must listen.
        **flags: nsqadmin's flags with ``_`` for ``-``: durations in seconds, repeated flags as
            lists.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        One thread at a time may call it.
    """

    options: ClassVar[type[AdminOptions]] = AdminOptions
    _module: ClassVar[Sequence[str]] = ("gnsqsync.admin", EXIT_WITH_PARENT)

    def __init__(
        self,
        *,
        http_address: str | None = None,
        lookupd_http_addresses: str | Iterable[str] = (),
        nsqd_http_addresses: str | Iterable[str] = (),
        binary: str | None = None,
        start_timeout: float = 30.0,
        **flags: Any,
    ) -> None:
        for name, value in (
            ("lookupd_http_address", lookupd_http_addresses),
            ("nsqd_http_address", nsqd_http_addresses),
        ):
            addresses = [value] if isinstance(value, str) else list(value)
            if addresses:
                flags[name] = addresses
        super().__init__({"http_address": http_address}, binary, start_timeout, flags)

    @property
    def url(self) -> str:
        """URL of the first page."""
        base = self.options(base_path=self._given.get("base_path", "/")).base_path
        return f"http://{self.http_address}{base}"

    def _listeners(self) -> dict[str, str]:
        return {"HTTP": "http_address"}
