"""An nsqd and an nsqlookupd for development and tests: same protocol, same answers, one process.

``Nsqd`` and ``Nsqlookupd`` start them as child processes, so this package loads neither gevent
nor the servers into the process that asks for them. Do not use them in production: they replicate
nothing, and each runs on one core.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.embedded.process import Nsqd, Nsqlookupd, ServerFailed

__all__ = ["Nsqd", "Nsqlookupd", "ServerFailed"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gnsqsync.embedded' has no attribute {name!r}")
    value = getattr(importlib.import_module("gnsqsync.embedded.process"), name)
    globals()[name] = value
    return value
