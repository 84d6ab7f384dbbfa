"""NSQ in a Flask application: ``nsq = NSQ(app)``, or ``nsq.init_app(app)`` in a factory.

An import and ``init_app`` connect to nothing and start no thread. Only the first publish and
``flask nsq consume`` do.
"""

from __future__ import annotations

from gnsqsync.flask.extension import NSQ
from gnsqsync.testing.memory import CapturedMessage

__all__ = ["NSQ", "CapturedMessage"]
