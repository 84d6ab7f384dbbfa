"""nsqadmin as a WSGI application. Knows how its parts fit together. Knows no socket.

Any web server with threads or greenlets can run it, alone or inside another application.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gnsqsync.admin.access import Access
from gnsqsync.admin.actions import Actions, Notifications
from gnsqsync.admin.api import API
from gnsqsync.admin.cluster import Cluster
from gnsqsync.admin.options import AdminOptions
from gnsqsync.admin.overview import Overview
from gnsqsync.admin.pages.forms import Forms
from gnsqsync.admin.pages.rendering import Rendering, with_dots
from gnsqsync.admin.pages.views import Views
from gnsqsync.admin.watch import Watches
from gnsqsync.daemon.golog import LEVELS, Log
from gnsqsync.daemon.web import JSON_TYPE, App, Request, Response, rendered, url_path
from gnsqsync.http.transport import authorities

__all__ = ["Admin", "create_app"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
)

# Titles of pages for failures, by status.
_FAILURES = {
    400: "This link is not complete",
    404: "There is no such page",
    405: "This page takes no such request",
    413: "That is too large",
    500: "nsqadmin has a fault; its log has more",
}

StartResponse = Callable[[str, list[tuple[str, str]]], object]


class Admin:
    """A WSGI application for one cluster, made by ``create_app``.

    It opens no connection and starts no thread before the first request.

    Args:
        options: The flags of nsqadmin.
        log: The log of the requests. None means one to stderr, by the flags.

    Raises:
        OptionsError: nsqadmin would not start with these options.

    Threads:
        Any thread or greenlet may call, several at a time.
    """

    def __init__(self, options: AdminOptions, log: Log | None = None) -> None:
        options.check()
        self.options: AdminOptions = options
        self.log: Log = log or Log(options.log_prefix, options.log_level)
        verify = not options.http_client_tls_insecure_skip_verify
        ca_file = options.http_client_tls_root_ca_file
        cert = options.http_client_tls_cert
        self._cluster: Cluster = Cluster(
            options.lookupd_http_address,
            options.nsqd_http_address,
            lambda text: self.log.info("%s", text),
            timeout=options.http_client_request_timeout,
            connect_timeout=options.http_client_connect_timeout,
            tls_verify=verify,
            tls_ca_file=ca_file or None,
            tls_cert_file=cert or None,
            tls_key_file=options.http_client_tls_key or None,
        )
        self._notifications = Notifications(
            options.notification_http_endpoint,
            self.log,
            timeout=(options.http_client_connect_timeout, options.http_client_request_timeout),
            verify=authorities(ca_file or None, verify),
            cert=(cert, options.http_client_tls_key) if cert else None,
        )
        self._actions: Actions = Actions(self._cluster, self._notifications, self.log)
        self._access: Access = Access(options)
        api = API(options, self._cluster, self._actions, self._access, self.log)
        self._overview = Overview(self._cluster)
        self._watches = Watches(self._cluster, self._overview, self._access, self.log)
        rendering = Rendering(options, self._access)
        views = Views(options, self._cluster, self._overview, rendering)
        forms = Forms(
            self._cluster, self._overview, self._actions, self._access, rendering, self.log
        )
        self._rendering = rendering
        self._base = base = options.base_path.rstrip("/")
        pages = [
            (method, base + path, with_dots(handler))
            for routes in (views.routes(), forms.routes(), self._watches.routes())
            for method, path, handler in routes
        ]
        # The base path is served with and without the slash, because a proxy may redirect.
        if base:
            pages.append(("GET", base, next(each[2] for each in pages if each[1] == f"{base}/")))
        self._app = App([*api.routes(), *pages], self.log)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request by the rules of WSGI (PEP 3333).

        Args:
            environ: The request, as the server of the application gives it.
            start_response: Takes the status and the headers.

        Returns:
            The parts of the body.
        """
        began = time.monotonic()
        asked = {**environ, "PATH_INFO": self._path(environ.get("PATH_INFO") or "/")}
        response = self._as_page(asked, self._app.respond(asked))
        if response.stream is None:
            response = _compressed(response, environ)
        status, headers, body = rendered(response)
        start_response(status, [*headers, *_SAFE])
        if response.status not in (301, 307) and environ["REQUEST_METHOD"] != "OPTIONS":
            self._tell(asked, response.status, time.monotonic() - began)
        if response.stream is not None:
            return response.stream
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _path(self, path: str) -> str:
        """Return the path with the base path, which a proxy may have removed.

        An application around this one has moved its own prefix to SCRIPT_NAME.
        """
        is_whole = path == self._base or path.startswith(f"{self._base}/")
        return path if is_whole else self._base + path

    def _as_page(self, environ: dict[str, Any], response: Response) -> Response:
        """Return a failure as a page if a browser asked for a page, else unchanged."""
        part = environ["PATH_INFO"][len(self._base) :]
        is_api = part.startswith(("/api/", "/config/")) or part in ("/ping", "/render")
        wants_html = "text/html" in environ.get("HTTP_ACCEPT", "")
        if response.status < 400 or response.content_type != JSON_TYPE or is_api or not wants_html:
            return response
        code = json.loads(response.body)["message"]
        text = _FAILURES.get(response.status, "This cannot be done.")
        request = Request(environ)
        return self._rendering.failure(request, text, f"nsqadmin says {code}.", response.status)

    def close(self) -> None:
        """Send the notifications that wait, and end all threads and connections."""
        self._watches.close()
        self._notifications.close()
        # The looking thread ends with its request, and asks nothing more.
        self._cluster.cut()
        self._overview.close()
        self._cluster.close()

    def _tell(self, environ: Mapping[str, Any], status: int, seconds: float) -> None:
        query = environ.get("QUERY_STRING", "")
        self.log.info(
            "%d %s %s (%s:%s) %.3fms",
            status,
            environ["REQUEST_METHOD"],
            url_path(environ["PATH_INFO"]) + (f"?{query}" if query else ""),
            environ.get("REMOTE_ADDR", ""),
            environ.get("REMOTE_PORT", ""),
            seconds * 1000,
        )


def _compressed(response: Response, environ: Mapping[str, Any]) -> Response:
    """Compress by the first accepted one of gzip and deflate. Ignore an encoding with a weight."""
    body = response.body.encode() if isinstance(response.body, str) else response.body
    for name in map(str.strip, environ.get("HTTP_ACCEPT_ENCODING", "").split(",")):
        match name:
            case "gzip":
                packed = gzip.compress(body, 6)
            case "deflate":
                packer = zlib.compressobj(6, zlib.DEFLATED, -15)
                packed = packer.compress(body) + packer.flush()
            case _:
                continue
        headers = [
            *response.headers,
            ("Content-Encoding", name.strip()),
            ("Vary", "Accept-Encoding"),
        ]
        return response._replace(body=packed, headers=headers)
    return response


class _PythonLog(Log):
    """A log that writes to the logger ``gnsqsync.admin`` of the application around this one."""

    _LOGGER = logging.getLogger("gnsqsync.admin")

    def _write(self, level: int, text: str, args: tuple[object, ...]) -> None:
        if level >= LEVELS[self.level]:
            # The levels of logging are the same numbers times ten.
            self._LOGGER.log(level * 10, text, *args)


def create_app(options: AdminOptions | None = None, **keywords: Any) -> Admin:
    """Return nsqadmin as a WSGI application, to serve or to mount.

    Args:
        options: All options. The default is AdminOptions().
        keywords: Fields of AdminOptions, such as ``lookupd_http_address=["127.0.0.1:4161"]``.

    Log lines from ``log_level`` on go to the logger ``gnsqsync.admin``.

    Raises:
        OptionsError: nsqadmin does not start with these options. The text is nsqadmin's.
    """
    options = (options or AdminOptions()).replace(**keywords)
    return Admin(options, _PythonLog(options.log_prefix, options.log_level))
