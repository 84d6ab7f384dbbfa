"""Requests to auth servers: the rights of a client (docs/protocol/handshake#auth).

Knows their HTTP API and the rules of their answers; nothing of the TCP protocol.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlencode, urlsplit

from gnsqsync.daemon.answers import PART, read_whole
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.goregexp import compile_go
from gnsqsync.daemon.secrets import shown
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.options import environment_bundle

__all__ = ["AuthFailure", "AuthQuery", "Authenticator", "Authorization"]

AuthQuery: TypeAlias = "Callable[[str, bool, str, bytes], Authorization]"
"""(peer IP, True with TLS, common name of the client certificate, secret) -> Authorization."""

# Upper bound of the bytes of an answer.
ANSWER_LIMIT = 1024 * 1024

# RFC 3339, the form of a time that Go accepts in JSON.
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class AuthFailure(Exception):
    """No auth server could be reached, or its answer was rejected."""


class _Permission(NamedTuple):
    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    kinds: frozenset[str]

    def allows(self, kind: str, topic: str, channel: str) -> bool:
        # nsqd does not anchor the patterns. A publish has the channel "".
        return (
            kind in self.kinds
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) for pattern in self.channels)
        )


class Authorization(NamedTuple):
    """The answer of an auth server. ``expires_at`` is in seconds of the monotonic clock."""

    identity: str
    identity_url: str
    permissions: tuple[_Permission, ...]
    expires_at: float

    @classmethod
    def parse(cls, answer: Any, now: float) -> Authorization:
        """Check the answer as nsqd does. AuthFailure if nsqd would reject the whole answer."""
        answer = _object(answer, "the answer")
        ttl = answer.get("ttl")
        if type(ttl) is not int or not 0 < ttl < 2**63:
            raise AuthFailure(f"invalid TTL {ttl!r:.60} (must be >0)")
        # nsqd decodes the answer into a struct with this field, although it overwrites the value.
        if "expires" in answer and not _TIME.fullmatch(_text(answer, "expires")):
            raise AuthFailure("expires is not a time")
        entries = _list(answer, "authorizations")
        return cls(
            _text(answer, "identity"),
            _text(answer, "identity_url"),
            tuple(_permission(entry) for entry in entries),
            now + ttl,
        )

    def allows(self, topic: str, channel: str) -> bool:
        """Return True if the client may subscribe, or publish to ``topic`` if ``channel`` is ""."""
        kind = "subscribe" if channel else "publish"
        return any(entry.allows(kind, topic, channel) for entry in self.permissions)


def _object(found: Any, what: str) -> dict[str, Any]:
    """Read a JSON object as Go does: keys in any case, null as an empty object."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise AuthFailure(f"{what} is not an object")
    return {key.casefold(): value for key, value in found.items() if value is not None}


def _text(found: dict[str, Any], key: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise AuthFailure(f"{key} is not a string")
    return value


def _list(found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key, [])
    if not isinstance(value, list):
        raise AuthFailure(f"{key} is not a list")
    return value


def _pattern(text: Any) -> re.Pattern[str]:
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise AuthFailure(f"{text!r} is not a regular expression")
    try:
        return compile_go(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise AuthFailure(f"unable to compile {text!r}: {error}") from None


def _permission(entry: Any) -> _Permission:
    entry = _object(entry, "an authorization")
    kinds = _list(entry, "permissions")
    for kind in kinds:
        if kind not in ("subscribe", "publish"):
            raise AuthFailure(f"unknown permission {kind!r}")
    channels = tuple(_pattern(channel) for channel in _list(entry, "channels"))
    return _Permission(_pattern(_text(entry, "topic")), channels, frozenset(kinds))


class Authenticator:
    """A client of the servers of --auth-http-address. Each query begins with a random server.

    ``run`` calls a function that blocks, while other greenlets go on.
    """

    def __init__(
        self,
        options: NsqdOptions,
        log: Log,
        now: Callable[[], float],
        run: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._options = options
        self._log = log
        self._now = now
        self._run = run

    def query(self, ip: str, tls: bool, common_name: str, secret: bytes) -> Authorization:
        """Ask the servers until one answers. AuthFailure if no server gave a usable answer."""
        parameters = {
            "common_name": common_name,
            "remote_ip": ip,
            "secret": secret,
            "tls": "true" if tls else "false",
        }
        servers = list(self._options.auth_http_address)
        first = random.randrange(len(servers))
        for server in servers[first:] + servers[:first]:
            endpoint = server if "://" in server else f"http://{server}/auth"
            url = f"{endpoint}?{urlencode(parameters)}"
            try:
                answer = self._run(lambda url=url: self._get(url))  # type: ignore[misc]
                return Authorization.parse(answer, self._now())
            except AuthFailure as error:
                # The query of the URL contains the secret, so only the endpoint is logged.
                self._log.error("error querying auth server %s - %s", shown(endpoint), error)
        raise AuthFailure("unable to access auth server")

    def _get(self, url: str) -> Any:
        import requests

        options = self._options
        timeouts = (options.http_client_connect_timeout, options.http_client_request_timeout)
        with requests.Session() as session:
            # nsqd connects to its auth servers directly and ignores proxies of the environment.
            session.trust_env = False
            session.headers["Accept"] = "application/vnd.nsq; version=1.0"
            session.headers["User-Agent"] = "nsqd/1.3.0 (gnsqsync embedded)"
            session.verify = options.tls_root_ca_file or environment_bundle() or True
            deadline = time.monotonic() + sum(timeouts)

            def ask(url: str) -> tuple[int, bytes]:
                with session.get(url, timeout=timeouts, stream=True) as answer:
                    parts = answer.iter_content(PART)
                    return answer.status_code, read_whole(
                        parts, ANSWER_LIMIT, deadline, AuthFailure
                    )

            try:
                status, content = ask(url)
                if status == 403 and url.startswith("http://"):
                    status, content = ask(_https_url(url, json.loads(content)))
                if status != 200:
                    raise AuthFailure(f"got response {status}")
                return json.loads(content)
            except (OSError, ValueError, RecursionError) as error:
                # requests raises OSErrors, and ValueErrors for JSON. Their texts contain the URL,
                # and so the secret.
                raise AuthFailure(type(error).__name__) from None


def _https_url(url: str, answer: Any) -> str:
    port = answer.get("https_port") if isinstance(answer, dict) else None
    if type(port) is not int:
        raise AuthFailure("got response 403")
    parts = urlsplit(url)
    return parts._replace(scheme="https", netloc=f"{parts.hostname}:{port}").geturl()
