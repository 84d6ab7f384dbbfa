"""The routes of the pages: what each one shows, and what its forms do.

Knows templates and forms. What is shown comes from Cluster and Overview; Actions does the rest.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

try:
    import jinja2
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        'nsqadmin needs Jinja: pip install "gnsqsync[admin]"', name="jinja2"
    ) from _missing

from gnsqsync.admin.access import Access
from gnsqsync.admin.actions import Actions
from gnsqsync.admin.api import visitor
from gnsqsync.admin.cluster import AllFailed, Cluster, http_address
from gnsqsync.admin.options import AdminOptions
from gnsqsync.admin.overview import Overview
from gnsqsync.admin.pages.texts import drain_text, duration_text, rate_text, spark_points
from gnsqsync.admin.troubles import Level
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.daemon.web import Answer, HTTPFault, Request, Response, Route
from gnsqsync.stats import counted

__all__ = ["Pages"]

_HTML = "text/html; charset=utf-8"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_COOKIE = "gnsqsync_admin"
# Rows on a page of topics.
_ROWS = 100
# Bytes of a form: one message, percent-encoded.
_FORM_LIMIT = 16 * 1024 * 1024

_VERBS = {
    "pause": "Pause",
    "unpause": "Unpause",
    "empty": "Empty",
    "delete": "Delete",
    "tombstone": "Tombstone",
}

_DONE = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}

Handler = Callable[["Pages", Request], Answer]


class Pages:
    """The handlers; ``routes`` goes into ``web.App``."""

    def __init__(
        self,
        options: AdminOptions,
        cluster: Cluster,
        overview: Overview,
        actions: Actions,
        access: Access,
        log: Log,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._overview = overview
        self._actions = actions
        self._access = access
        self._log = log
        self._static = resources.files("gnsqsync.admin.pages") / "static"
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("gnsqsync.admin.pages"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            counted=counted,
            drain=drain_text,
            duration=duration_text,
            rate=rate_text,
            spark=spark_points,
        )
        self._templates.globals.update(Level=Level, verbs=_VERBS)

    def routes(self) -> list[Route]:
        """With paths below the base path."""
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/", Pages._topics),
            ("GET", "/topics", Pages._topics),
            ("GET", "/topics/:topic", Pages._topic),
            ("GET", "/topics/:topic/:channel", Pages._channel),
            ("GET", "/nodes", Pages._nodes),
            ("GET", "/nodes/:node", Pages._node),
            ("GET", "/counter", Pages._counter),
            ("GET", "/lookup", Pages._lookup),
            ("GET", "/publish/:topic", Pages._publish),
            ("GET", "/confirm", Pages._confirm),
            ("POST", "/do", Pages._do),
            ("GET", "/static/:asset", Pages._asset),
            ("GET", "/fonts/:asset", Pages._asset),
        ]
        base = self._options.base_path.rstrip("/")
        return [
            (method, (base + path).rstrip("/") or "/", self._bound(handler))
            for method, path, handler in handlers
        ]

    def _bound(self, handler: Handler) -> Callable[[Request], Answer]:
        return lambda request: handler(self, request)

    # -- looking -------------------------------------------------------------------------------

    def _topics(self, request: Request) -> Answer:
        picture = self._overview.picture()
        wanted = (request.get("q") or "").strip()
        rows = [row for row in picture.rows if wanted.lower() in row.name.lower()]
        page = _page_number(request.get("page"))
        pages = max(1, -(-len(rows) // _ROWS))
        page = min(page, pages)
        return self._page(
            request,
            "topics.html",
            picture=picture,
            rows=rows[(page - 1) * _ROWS : page * _ROWS],
            found=len(rows),
            wanted=wanted,
            number=page,
            pages=pages,
        )

    def _topic(self, request: Request) -> Answer:
        (name,) = request.path_values
        try:
            topic, stages = self._cluster.topic(name)
        except AllFailed as error:
            return self._failure(request, f"Topic {name}", str(error))
        row = self._overview.picture(0.0).topic(name)
        return self._page(
            request, "topic.html", topic=topic, row=row, errors=[e for s in stages for e in s]
        )

    def _channel(self, request: Request) -> Answer:
        topic, name = request.path_values
        try:
            channel, stages = self._cluster.channel(topic, name)
        except AllFailed as error:
            return self._failure(request, f"Channel {name} of {topic}", str(error))
        if channel is None:
            return self._failure(
                request, f"Channel {name} of {topic}", "No nsqd has this channel.", 404
            )
        row = self._overview.picture(0.0).channel(topic, name)
        return self._page(
            request, "channel.html", channel=channel, row=row, errors=[e for s in stages for e in s]
        )

    def _nodes(self, request: Request) -> Answer:
        try:
            nodes, errors = self._cluster.nodes()
        except AllFailed as error:
            return self._failure(request, "Nodes", str(error))
        return self._page(request, "nodes.html", nodes=nodes, errors=errors)

    def _node(self, request: Request) -> Answer:
        (name,) = request.path_values
        try:
            topics, errors = self._cluster.node(name)
        except AllFailed as error:
            return self._failure(request, f"Node {name}", str(error))
        if topics is None:
            return self._failure(request, f"Node {name}", "There is no such nsqd.", 404)
        return self._page(request, "node.html", name=name, topics=topics, errors=errors)

    def _counter(self, request: Request) -> Answer:
        try:
            stats, stages = self._cluster.counters()
        except AllFailed as error:
            return self._failure(request, "Counter", str(error))
        total = sum(each["message_count"] for each in stats.values())
        return self._page(
            request, "counter.html", total=total, errors=[e for s in stages for e in s]
        )

    def _lookup(self, request: Request) -> Answer:
        lookupds = self._cluster.lookupds
        inactive: dict[str, list[str] | None] = {}
        errors: list[str] = []
        if lookupds:
            try:
                topics, errors = self._cluster.topics()
                inactive = self._cluster.inactive(topics or ())
            except AllFailed as error:
                errors = str(error).splitlines()
        return self._page(
            request, "lookup.html", lookupds=lookupds, inactive=inactive, errors=errors
        )

    def _publish(self, request: Request) -> Answer:
        (topic,) = request.path_values
        try:
            nodes, errors = self._cluster.having(topic)
        except AllFailed as error:
            return self._failure(request, f"Publish to {topic}", str(error))
        return self._page(request, "publish.html", topic=topic, nodes=nodes, errors=errors)

    def _asset(self, request: Request) -> Answer:
        (name,) = request.path_values
        kind = _TYPES.get(Path(name).suffix)
        folder = self._options.dev_static_dir
        source = Path(folder) / name if folder else self._static / name
        if kind is None or name.startswith(".") or not source.is_file():
            return Response("NOT_FOUND", 404, "text/plain; charset=utf-8", plain=True)
        headers = [("Cache-Control", "max-age=300")]
        return Response(source.read_bytes(), 200, kind, headers, plain=True)

    # -- acting --------------------------------------------------------------------------------

    def _confirm(self, request: Request) -> Answer:
        """What will go, before it goes."""
        verb, topic = request.get("verb") or "", request.get("topic") or ""
        channel, node = request.get("channel") or "", request.get("node") or ""
        if verb not in _VERBS or not topic:
            raise HTTPFault(400, "INVALID_ACTION")
        found: Any = None
        errors: list[str] = []
        try:
            found, stages = (
                self._cluster.channel(topic, channel) if channel else self._cluster.topic(topic)
            )
            errors = [error for stage in stages for error in stage]
        except AllFailed as error:
            errors = str(error).splitlines()
        return self._page(
            request,
            "confirm.html",
            verb=verb,
            topic=topic,
            channel=channel,
            node=node,
            found=found,
            errors=errors,
        )

    def _do(self, request: Request) -> Answer:
        why = self._access.to_act(request.environ) or self._access.to_post(request.environ)
        form = {} if why else _form(request)
        token = _token(request) or secrets.token_hex()
        if not why and not hmac.compare_digest(form.get("token", "").encode(), token.encode()):
            why = "the form is too old; load the page again"
        if why:
            self._log.warning("%r of the pages refused: %s", form.get("verb", "an action"), why)
            return self._failure(request, "Not done", f"{why}.", 403)
        verb, topic = form.get("verb", ""), form.get("topic", "")
        channel, node = form.get("channel", ""), form.get("node", "")
        who = visitor(request.environ)
        try:
            match verb:
                case "create":
                    if not _is_name(topic) or (channel and not _is_name(channel)):
                        return self._failure(
                            request,
                            "Not created",
                            "A name has 1 to 64 of the characters . a-z A-Z 0-9 _ and -,"
                            " and may end with #ephemeral.",
                            400,
                        )
                    errors = self._actions.create(topic, channel, who)
                    done = f"Created: {_named(topic, channel)}."
                case "pause" | "unpause" | "empty":
                    errors = self._actions.change(verb, topic, channel, who)
                    done = f"{_DONE[verb]}: {_named(topic, channel)}."
                case "delete":
                    errors = self._actions.delete(topic, channel, who)
                    done = f"Deleted: {_named(topic, channel)}."
                case "tombstone":
                    errors = self._actions.tombstone(topic, node, who)
                    done = f"Topic {topic} is tombstoned on {node}."
                case "publish":
                    nodes, _ = self._cluster.having(topic)
                    if node not in map(http_address, nodes):
                        return self._failure(
                            request, "Not published", f"{node} has no topic {topic}.", 400
                        )
                    # A form has line ends of its own, whatever was typed.
                    body = form.get("body", "").replace("\r\n", "\n")
                    errors = self._actions.publish(topic, body.encode(), node)
                    done = f"The message is published to {topic} on {node}."
                case _:
                    raise HTTPFault(400, "INVALID_ACTION")
        except AllFailed as error:
            return self._failure(request, "Not done", str(error))
        self._log.info("%s of %r by %s", verb, _named(topic, channel), who.remote_ip)
        gone = verb == "delete"
        return self._page(
            request,
            "done.html",
            done="" if errors else done,
            errors=errors,
            topic="" if gone and not channel else topic,
            channel="" if gone else channel,
        )

    # -- inside --------------------------------------------------------------------------------

    def _failure(self, request: Request, title: str, text: str, status: int = 502) -> Answer:
        return self._page(request, "failure.html", status, title=title, lines=text.splitlines())

    def _page(
        self, request: Request, template: str, status: int = 200, /, **values: Any
    ) -> Response:
        environ = request.environ
        root = environ.get("SCRIPT_NAME", "") + self._options.base_path.rstrip("/")
        refusal = self._access.to_act(environ)
        token = _token(request)
        headers = [("Cache-Control", "no-store")]
        if token is None and not refusal:
            token = secrets.token_hex(16)
            cookie = f"{_COOKIE}={token}; Path={root or '/'}; HttpOnly; SameSite=Strict"
            headers.append(("Set-Cookie", cookie))
        html = self._templates.get_template(template).render(
            url=lambda *parts: root + "/" + "/".join(quote(str(part), safe="") for part in parts),
            here=environ["PATH_INFO"],
            may_act=not refusal,
            refusal=refusal,
            token=token or "",
            graphite=self._graphite_link(root),
            **values,
        )
        return Response(html, status, _HTML, headers, plain=True)

    def _graphite_link(self, root: str) -> str:
        """Where graphite draws; "" without one. Without the password of its URL."""
        if not self._options.graphite_url:
            return ""
        if self._options.proxy_graphite:
            return f"{root}/render"
        parts = urlsplit(self._options.graphite_url)
        if parts.scheme not in ("http", "https"):
            return ""
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/render"


def _named(topic: str, channel: str) -> str:
    return f"channel {channel} of {topic}" if channel else f"topic {topic}"


def _is_name(text: str) -> bool:
    return valid_name(text.encode())


def _page_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < len(text) < 7 else 1


def _token(request: Request) -> str | None:
    """What the visitor's cookie says, which a page of another site cannot read."""
    try:
        cookie = SimpleCookie(request.environ.get("HTTP_COOKIE", "")).get(_COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie is not None and len(cookie.value) == 32 else None


def _form(request: Request) -> dict[str, str]:
    body = request.read(_FORM_LIMIT + 1)
    if len(body) > _FORM_LIMIT:
        raise HTTPFault(413, "REQUEST_TOO_LARGE")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise HTTPFault(400, "INVALID_BODY") from None
