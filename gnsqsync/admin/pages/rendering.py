"""Pages from templates, with the links, the rights and the token that all pages have.

Knows templates and cookies. views.py has the values to show, forms.py the actions of forms.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

try:
    import jinja2
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        'nsqadmin needs Jinja: pip install "gnsqsync[admin]"', name="jinja2"
    ) from _missing

from gnsqsync.admin.access import LETTERS, Access
from gnsqsync.admin.options import AdminOptions
from gnsqsync.admin.pages.finding import Absent
from gnsqsync.admin.pages.graphite import target
from gnsqsync.admin.pages.texts import drain_text, duration_text, rate_text, spark_points
from gnsqsync.admin.troubles import Level
from gnsqsync.admin.turns import in_turns
from gnsqsync.daemon.web import Answer, Handler, Request, Response
from gnsqsync.stats import counted

__all__ = ["VERBS", "Rendering", "token_of", "with_dots"]

_HTML = "text/html; charset=utf-8"
_COOKIE = "gnsqsync_admin"

# A browser takes the parts "." and ".." of a path away, also where they are escaped once, but both
# are names of topics. So links have them escaped twice.
_DOTS = {"%2E": ".", "%2E%2E": ".."}

# Number of pieces of a page after which other greenlets get a turn.
_TURN = 1000

VERBS = {
    "pause": "Pause",
    "unpause": "Unpause",
    "empty": "Empty",
    "delete": "Delete",
    "tombstone": "Tombstone",
}


# The nsqadmins of a process share the templates, as to compile them takes longer than a page.
@functools.cache
def _templates() -> jinja2.Environment:
    """Return the templates with their filters; nothing in them is about one nsqadmin."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("gnsqsync.admin.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        counted=counted,
        drain=drain_text,
        duration=duration_text,
        rate=rate_text,
        spark=spark_points,
    )
    found.globals.update(Level=Level, verbs=VERBS)
    return found


class Rendering:
    """A maker of answers from templates and values."""

    def __init__(self, options: AdminOptions, access: Access) -> None:
        self._options = options
        self._access = access
        self._templates = _templates()

    def or_absent(self, handler: Handler) -> Handler:
        """Return ``handler`` with a page in place of the exception Absent."""

        def answer(request: Request) -> Answer:
            try:
                return handler(request)
            except Absent as absent:
                return self.failure(
                    request,
                    absent.title,
                    absent.text,
                    absent.status,
                    near=absent.near,
                    unborn=absent.unborn,
                )

        return answer

    def failure(
        self,
        request: Request,
        title: str,
        text: str,
        status: int = 502,
        *,
        near: Sequence[tuple[str, ...]] = (),
        unborn: str = "",
    ) -> Response:
        """Return a page with the reason why something is not shown, or was not done.

        ``near`` and ``unborn``: see Absent.
        """
        return self.page(
            request,
            "failure.html",
            status,
            title=title,
            lines=text.splitlines(),
            near=near,
            unborn=unborn,
        )

    def page(
        self, request: Request, template: str, status: int = 200, /, **values: Any
    ) -> Response:
        """Return the page of ``template``. A visitor with rights gets a token for its forms."""
        environ = request.environ
        root = environ.get("SCRIPT_NAME", "") + self._options.base_path.rstrip("/")
        refusal = self._access.to_act(environ)
        token = token_of(request)
        headers = [("Cache-Control", "no-store")]
        if token is None and not refusal:
            token = secrets.token_hex(16)
            cookie = f"{_COOKIE}={token}; Path={root or '/'}; HttpOnly; SameSite=Strict"
            headers.append(("Set-Cookie", cookie))
        pieces = self._templates.get_template(template).generate(
            url=lambda *parts: root + "/" + "/".join(map(_quoted, parts)),
            here=environ["PATH_INFO"],
            may_act=not refusal,
            refusal=refusal,
            token=token or "",
            graphite=self._graphite_link(root),
            target=lambda key, kind="gauge": target(self._options, key, kind),
            letters_page=environ.get(LETTERS, lambda topic: ""),
            **values,
        )
        return Response("".join(in_turns(pieces, _TURN)), status, _HTML, headers, plain=True)

    def _graphite_link(self, root: str) -> str:
        """Return the URL of graphite's pictures without its password, or "" without graphite."""
        if not self._options.graphite_url:
            return ""
        if self._options.proxy_graphite:
            return f"{root}/render"
        parts = urlsplit(self._options.graphite_url)
        if parts.scheme not in ("http", "https"):
            return ""
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/render"


def with_dots(handler: Handler) -> Handler:
    """Return ``handler`` with the names in the path of a link as they are on the servers."""

    def answer(request: Request) -> Answer:
        request.path_values = tuple(_DOTS.get(value, value) for value in request.path_values)
        return handler(request)

    return answer


def _quoted(part: object) -> str:
    """Return a part of a path as it stands in a link."""
    escaped = {name: text for text, name in _DOTS.items()}
    return quote(escaped.get(str(part), str(part)), safe="")


def token_of(request: Request) -> str | None:
    """Return the token of the visitor's cookie, which a page of another site cannot read."""
    try:
        cookie = SimpleCookie(request.environ.get("HTTP_COOKIE", "")).get(_COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie is not None and len(cookie.value) == 32 else None
