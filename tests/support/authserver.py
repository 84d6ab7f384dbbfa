"""An auth server for nsqd, which answers GET /auth by the secret and records the requests.

Knows nsqd's query only (docs/protocol/handshake#auth).
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.serving import Serving


def grant(
    *authorizations: dict[str, Any], ttl: int = 3600, identity: str = "somebody"
) -> dict[str, Any]:
    """Return an auth server's reply with these authorizations."""
    return {
        "ttl": ttl,
        "identity": identity,
        "identity_url": "http://example.org/somebody",
        "authorizations": list(authorizations),
    }


def rule(topic: str, channels: list[str], *permissions: str) -> dict[str, Any]:
    """Return an authorization. `topic` and `channels` are regular expressions."""
    return {"topic": topic, "channels": channels, "permissions": list(permissions)}


class AuthServer(Serving):
    """A thread with an HTTP server on 127.0.0.1; use it as a context manager.

    `replies` maps a secret to (status, JSON object) and may change at any time; an unknown secret
    gets 403. `targets` are the request targets so far.
    """

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, dict[str, Any]]] = {}
        self.targets: list[str] = []
        server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"127.0.0.1:{server.server_port}"
        super().__init__(server, "auth server")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.targets.append(self.path)
                secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
                status, reply = owner.replies.get(secret, (403, {}))
                body = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass  # The output of tests needs no access log.

        return Handler
