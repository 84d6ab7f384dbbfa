"""The pages without actions. Their values come from Cluster and Overview."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from gnsqsync.admin import dead_letters
from gnsqsync.admin.cluster import AllFailed, Cluster
from gnsqsync.admin.options import AdminOptions
from gnsqsync.admin.overview import Overview, Picture
from gnsqsync.admin.pages.finding import UNREGISTERED, Absent, Finding, away_text, silent_text
from gnsqsync.admin.pages.rendering import Rendering
from gnsqsync.admin.watch import is_raw
from gnsqsync.daemon.secrets import shown
from gnsqsync.daemon.web import Answer, Request, Response, Route

__all__ = ["Views"]

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Rows on a page of topics.
_ROWS = 100


class Views:
    """The handlers of pages. ``routes`` goes into ``web.App``."""

    def __init__(
        self, options: AdminOptions, cluster: Cluster, overview: Overview, rendering: Rendering
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._overview = overview
        self._rendering = rendering
        self._finding = Finding(cluster)
        self._static = resources.files("gnsqsync.admin.pages") / "static"

    def routes(self) -> list[Route]:
        """Return the routes, with paths below the base path."""
        routes: list[Route] = [
            ("GET", "/", self._topics),
            ("GET", "/topics", self._topics),
            ("GET", "/topics/:topic", self._topic),
            ("GET", "/topics/:topic/:channel", self._channel),
            ("GET", "/nodes", self._nodes),
            ("GET", "/nodes/:node", self._node),
            ("GET", "/counter", self._counter),
            ("GET", "/lookup", self._lookup),
            ("GET", "/watch/:topic", self._watch),
            ("GET", "/static/:asset", self._asset),
            ("GET", "/fonts/:asset", self._asset),
        ]
        return [
            (method, path, self._rendering.or_absent(handler)) for method, path, handler in routes
        ]

    def _topics(self, request: Request) -> Answer:
        picture = self._overview.picture()
        wanted = (request.get("q") or "").strip()
        rows = [row for row in picture.rows if wanted.lower() in row.name.lower()]
        page = _page_number(request.get("page"))
        pages = max(1, -(-len(rows) // _ROWS))
        page = min(page, pages)
        return self._rendering.page(
            request,
            "topics.html",
            picture=picture,
            rows=rows[(page - 1) * _ROWS : page * _ROWS],
            found=len(rows),
            wanted=wanted,
            number=page,
            pages=pages,
            hint=self._hint(picture),
        )

    def _hint(self, picture: Picture) -> str:
        """Return the likely cause of what is missing on the first page, or ""."""
        has_lookupds = bool(self._cluster.lookupds)
        if picture.away:
            return away_text(picture.away, is_listed=has_lookupds)
        if picture.is_partial:
            return silent_text(is_listed=has_lookupds)
        if picture.at and has_lookupds and not picture.nodes:
            return UNREGISTERED
        return ""

    def _topic(self, request: Request) -> Answer:
        (name,) = request.path_values
        topic, errors = self._finding.topic(name)
        picture = self._overview.picture(0.0)
        return self._rendering.page(
            request,
            "topic.html",
            topic=topic,
            row=picture.topic(name),
            seconds=picture.seconds,
            errors=errors,
            has_lookupds=bool(self._cluster.lookupds),
        )

    def _channel(self, request: Request) -> Answer:
        topic, name = request.path_values
        channel, errors = self._finding.channel(topic, name)
        picture = self._overview.picture(0.0)
        return self._rendering.page(
            request,
            "channel.html",
            channel=channel,
            row=picture.channel(topic, name),
            seconds=picture.seconds,
            # Before the first look the dead letters are not known.
            dead=dead_letters.found_in(picture.rows, topic, name) if picture.at else None,
            errors=errors,
        )

    def _nodes(self, request: Request) -> Answer:
        try:
            nodes, errors = self._cluster.nodes()
        except AllFailed as error:
            return self._rendering.failure(request, "Nodes", str(error))
        return self._rendering.page(
            request, "nodes.html", nodes=nodes, errors=errors, unregistered=UNREGISTERED
        )

    def _node(self, request: Request) -> Answer:
        (name,) = request.path_values
        topics, errors = self._finding.node(name)
        return self._rendering.page(request, "node.html", name=name, topics=topics, errors=errors)

    def _counter(self, request: Request) -> Answer:
        try:
            stats, stages = self._cluster.counters()
        except AllFailed as error:
            text = UNREGISTERED if error.is_missing else str(error)
            return self._rendering.failure(request, "Counter", text)
        total = sum(each["message_count"] for each in stats.values())
        return self._rendering.page(
            request, "counter.html", total=total, errors=[e for s in stages for e in s]
        )

    def _lookup(self, request: Request) -> Answer:
        lookupds = self._cluster.lookupds
        inactive: dict[str, list[str] | None] = {}
        errors: list[str] = []
        if lookupds:
            try:
                topics, errors = self._cluster.topics()
                inactive, more = self._cluster.inactive(topics or ())
                errors = [*errors, *more]
            except AllFailed as error:
                errors = str(error).splitlines()
        return self._rendering.page(
            request,
            "lookup.html",
            lookupds=[shown(address) for address in lookupds],
            inactive=inactive,
            errors=errors,
        )

    def _watch(self, request: Request) -> Answer:
        (topic,) = request.path_values
        try:
            self._finding.topic(topic)
        except Absent as absent:
            # The watch itself shows nsqds that do not answer.
            if absent.status == 404:
                raise
        return self._rendering.page(request, "watch.html", topic=topic, raw=is_raw(request))

    def _asset(self, request: Request) -> Answer:
        (name,) = request.path_values
        kind = _TYPES.get(Path(name).suffix)
        folder = self._options.dev_static_dir
        source = Path(folder) / name if folder else self._static / name
        if kind is None or name.startswith(".") or not source.is_file():
            return Response("NOT_FOUND", 404, "text/plain; charset=utf-8", plain=True)
        headers = [("Cache-Control", "max-age=300")]
        return Response(source.read_bytes(), 200, kind, headers, plain=True)


def _page_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < len(text) < 7 else 1
