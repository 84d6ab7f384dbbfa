"""NSQ in a Flask application: ``nsq = NSQ(app)``, or ``nsq.init_app(app)`` in a factory.

Nothing is connected and no thread started by an import or by ``init_app``, only by the first
publish and by ``flask nsq consume``.
"""

from __future__ import annotations

from gnsqsync.flask.extension import NSQ
from gnsqsync.writer.memory import CapturedMessage

__all__ = ["NSQ", "CapturedMessage"]
