"""An nsqlookupd that tells the truth, lies, is slow or is not there, as it is told.

Speaks HTTP only, and knows no client. What is true it is given by the cluster.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.serving import Serving

LIES = ("empty", "null", "garbage", "dead", "odd", "error", "slow")
# Nobody listens there: reserved ports of the loopback.
_DEAD = [
    {"broadcast_address": "127.0.0.1", "tcp_port": port, "http_port": port, "hostname": "dead"}
    for port in (1, 2, 3)
]
_ODD = [None, 7, {}, {"broadcast_address": 5, "tcp_port": "x"}, {"tcp_port": 4150}, []]


class Liar(Serving):
    """Listens on a port of the kernel's choice. ``truth()`` gives the producers as they are."""

    def __init__(self, truth: Callable[[], list[dict[str, Any]]]) -> None:
        self.mode = "truth"
        self.delay = 0.0
        self.asked = 0
        self._truth = truth
        self._ended = threading.Event()
        liar = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                liar._serve(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        super().__init__(server, "liar")
        self.start()

    def tell(self, mode: str, delay: float = 0.0) -> None:
        """ "truth" or one of LIES from now on; ``delay``: seconds before each answer."""
        self.mode, self.delay = mode, delay

    def close(self) -> None:
        self._ended.set()
        super().close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        mode = self.mode
        if self.delay:
            self._ended.wait(self.delay)
        status = 500 if mode == "error" else 200
        body = self._body(mode)
        try:
            request.send_response(status)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
        except OSError:
            pass  # the client has waited long enough

    def _body(self, mode: str) -> bytes:
        if mode == "garbage":
            return b"\x00\xff<html>{]" * 50
        if mode == "error":
            return b"Internal Server Error"
        producers: Any = {"empty": [], "null": None, "dead": _DEAD, "odd": _ODD}.get(mode, ...)
        if producers is ...:
            producers = self._truth()
        return json.dumps({"channels": [], "producers": producers}).encode()
