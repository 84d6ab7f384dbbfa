"""A blocking NSQ client for threads and gevent.

Public names are loaded on first use, so that ``import gnsqsync`` stays cheap and creates nothing:
no thread, no socket, no lock.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnsqsync._version import __version__

if TYPE_CHECKING:
    from gnsqsync.addresses import AddressLike
    from gnsqsync.bodies import typed
    from gnsqsync.errors import TimeLimitExceeded, TimeLimitInterrupt
    from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP
    from gnsqsync.message import Discard, Message, Reject, Requeue
    from gnsqsync.middleware import Middleware, Publication
    from gnsqsync.observer import Observer
    from gnsqsync.options import ConnectionOptionKeywords, ConnectionOptions
    from gnsqsync.reader import Reader
    from gnsqsync.reader.group import ReaderGroup
    from gnsqsync.reader.key_window import KeyWindow
    from gnsqsync.reader.options import ReaderOptionKeywords
    from gnsqsync.reader.topic_group import TopicGroup
    from gnsqsync.writer import Writer
    from gnsqsync.writer.encoder import Encoder, Prepared

# Module of each public name.
_HOME = {
    "AddressLike": "gnsqsync.addresses",
    "ConnectionOptionKeywords": "gnsqsync.options",
    "ConnectionOptions": "gnsqsync.options",
    "Discard": "gnsqsync.message",
    "Encoder": "gnsqsync.writer.encoder",
    "KeyWindow": "gnsqsync.reader.key_window",
    "LookupdHTTP": "gnsqsync.http.clients",
    "Message": "gnsqsync.message",
    "Middleware": "gnsqsync.middleware",
    "NsqdHTTP": "gnsqsync.http.clients",
    "Observer": "gnsqsync.observer",
    "Prepared": "gnsqsync.writer.encoder",
    "Publication": "gnsqsync.middleware",
    "Reader": "gnsqsync.reader.reader",
    "ReaderGroup": "gnsqsync.reader.group",
    "ReaderOptionKeywords": "gnsqsync.reader.options",
    "Reject": "gnsqsync.message",
    "Requeue": "gnsqsync.message",
    "TimeLimitExceeded": "gnsqsync.errors",
    "TimeLimitInterrupt": "gnsqsync.errors",
    "TopicGroup": "gnsqsync.reader.topic_group",
    "Writer": "gnsqsync.writer.writer",
    "typed": "gnsqsync.bodies",
}

__all__ = [
    "AddressLike",
    "ConnectionOptionKeywords",
    "ConnectionOptions",
    "Discard",
    "Encoder",
    "KeyWindow",
    "LookupdHTTP",
    "Message",
    "Middleware",
    "NsqdHTTP",
    "Observer",
    "Prepared",
    "Publication",
    "Reader",
    "ReaderGroup",
    "ReaderOptionKeywords",
    "Reject",
    "Requeue",
    "TimeLimitExceeded",
    "TimeLimitInterrupt",
    "TopicGroup",
    "Writer",
    "__version__",
    "typed",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gnsqsync' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
