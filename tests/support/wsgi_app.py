"""A typical web application for servers that fork: one Writer, made at import.

Each request publishes its own body. With IMPORT_PUBLISHES set, the import publishes, so the Writer
is connected before a fork if the server imports the application before it forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from gnsqsync import Writer

TOPIC = os.environ["NSQ_TOPIC"]
writer = Writer(os.environ["NSQ_ADDRESS"], client_id=TOPIC)

if os.environ.get("IMPORT_PUBLISHES"):
    writer.publish(TOPIC, b"imported")


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    body: bytes = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    writer.publish(TOPIC, body)
    answer = b"%d" % os.getpid()
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]
