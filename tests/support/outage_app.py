"""A web application. Its page /publish publishes or shows the failure; others publish nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from gnsqsync import Writer
from gnsqsync.errors import PublishError

TOPIC = os.environ["NSQ_TOPIC"]
writer = Writer(
    os.environ["NSQ_ADDRESS"], publish_timeout=float(os.environ.get("PUBLISH_TIMEOUT", "5"))
)


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    status, answer = "200 OK", b"fine"
    if environ["PATH_INFO"] == "/publish":
        try:
            writer.publish(TOPIC, b"x")
        except PublishError as error:
            status, answer = "503 Service Unavailable", f"{type(error).__name__}: {error}".encode()
    start_response(status, [("Content-Length", str(len(answer)))])
    return [answer]
