"""nsqadmin: web pages and a JSON API for a whole cluster.

``create_app()`` returns nsqadmin as a WSGI application. ``gnsqsync nsqadmin`` serves it, and
``Nsqadmin`` serves it in a child process. Knows the answers of nsqd's and nsqlookupd's HTTP APIs.
Does not know the embedded servers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.admin.app import Admin, create_app
    from gnsqsync.admin.options import AdminOptions
    from gnsqsync.admin.process import Nsqadmin

__all__ = ["Admin", "AdminOptions", "Nsqadmin", "create_app"]

_HOME = {
    "Admin": "gnsqsync.admin.app",
    "AdminOptions": "gnsqsync.admin.options",
    "Nsqadmin": "gnsqsync.admin.process",
    "create_app": "gnsqsync.admin.app",
}


def __getattr__(name: str) -> Any:
    # Names are imported on first use, because gevent must patch a process before ssl is loaded.
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gnsqsync.admin' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
