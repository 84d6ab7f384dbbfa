"""NSQ in a Flask application: ``nsq = NSQ(app)``, or ``nsq.init_app(app)`` in a factory.

An import and ``init_app`` connect to nothing and start no thread. Only the first publish and
``flask nsq consume`` do. The names are loaded on first use, because the program ``flask`` imports
this package before each application (``starting``), also before one that patches by gevent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.flask.extension import NSQ
    from gnsqsync.testing.memory import CapturedMessage

__all__ = ["NSQ", "CapturedMessage"]

# Module of each public name.
_HOME = {"NSQ": "gnsqsync.flask.extension", "CapturedMessage": "gnsqsync.testing.memory"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gnsqsync.flask' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
