"""nsqadmin's JSON API, /config, /ping and graphite, with the Go program's answers.

Knows routes, parameters and answers. cluster.py asks the servers, and actions.py changes them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn

import requests

from gnsqsync.admin.access import RECORD, USER, Access
from gnsqsync.admin.actions import Actions, NotListed, Verb, Visitor
from gnsqsync.admin.cluster import AllFailed, Cluster
from gnsqsync.admin.options import AdminOptions
from gnsqsync.daemon.answers import PART, read_whole
from gnsqsync.daemon.flags import config_names, config_value
from gnsqsync.daemon.gojson import read_first_object
from gnsqsync.daemon.golog import LEVELS, Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.daemon.secrets import shown
from gnsqsync.daemon.web import (
    Answer,
    HTTPFault,
    Request,
    Response,
    Route,
    parse_query,
    url_path,
)
from gnsqsync.http.json_memory import parse_json

__all__ = ["API", "BODY_LIMIT", "CONFIG_LIMIT", "visitor", "warning"]

# Upper bound of a request's body, in bytes.
BODY_LIMIT = 1024 * 1024
CONFIG_LIMIT = 1024 * 1024
# Upper bound of graphite's answer (a picture or a table), in bytes.
GRAPHITE_LIMIT = 16 * 1024 * 1024

_VERBS: dict[str, Verb] = {"pause": "pause", "unpause": "unpause", "empty": "empty"}
_BAD_ESCAPE = re.compile(r"%(?:[0-9a-fA-F]?(?![0-9a-fA-F]).?|$)")

Handler = Callable[["API", Request], Answer]


def warning(*stages: Sequence[str]) -> str:
    """Return the ``message`` of an answer: the failures of each stage, or ""."""
    failed = "; ".join("\n".join(errors) for errors in stages if errors)
    return f"WARNING: {failed}" if failed else ""


def visitor(environ: Mapping[str, Any]) -> Visitor:
    """Return the sender of a request, for notifications."""
    user = environ.get(USER, "")
    kind, _, credentials = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(credentials, validate=True).decode("utf-8", "replace")
            user = user or text.partition(":")[0]
        except (binascii.Error, ValueError):
            pass
    peer = environ.get("REMOTE_ADDR", "")
    scheme = "https" if environ.get("HTTP_X_SCHEME") == "https" else "http"
    query = environ.get("QUERY_STRING", "")
    path = url_path(environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"])
    path += f"?{query}" if query else ""
    return Visitor(
        user,
        f"{f'[{peer}]' if ':' in peer else peer}:{environ.get('REMOTE_PORT', '')}",
        environ.get("HTTP_USER_AGENT", ""),
        f"{scheme}://{environ.get('HTTP_HOST', '')}{path}",
        environ.get(RECORD),
    )


def _reads(what: str) -> Callable[[Handler], Handler]:
    """Answer 502 if no server answers the handler. ``what`` is for the log."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def answer(api: API, request: Request) -> Answer:
            try:
                return handler(api, request)
            except AllFailed as error:
                api.log.error("failed to %s - %s", what, error)
                raise HTTPFault(502, f"UPSTREAM_ERROR: {error}") from None

        return answer

    return decorate


def _acts(handler: Handler) -> Handler:
    """Answer 403, before the body is read, if the visitor has no right to act."""

    @wraps(handler)
    def answer(api: API, request: Request) -> Answer:
        why = api.access.to_act(request.environ) or api.access.to_post(request.environ)
        if why:
            api._refuse(request, why)
        return handler(api, request)

    return answer


class API:
    """The handlers of the JSON API. ``routes`` goes into ``web.App``."""

    def __init__(
        self, options: AdminOptions, cluster: Cluster, actions: Actions, access: Access, log: Log
    ) -> None:
        self.options: AdminOptions = options
        self.access: Access = access
        self.log: Log = log
        self._cluster = cluster
        self._actions = actions

    def routes(self) -> list[Route]:
        """Return the routes, with paths below the base path."""
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/ping", API._ping),
            ("GET", "/api/topics", API._topics),
            ("POST", "/api/topics", API._create),
            ("GET", "/api/topics/:topic", API._topic),
            ("POST", "/api/topics/:topic", API._change),
            ("DELETE", "/api/topics/:topic", API._delete),
            ("GET", "/api/topics/:topic/:channel", API._channel),
            ("POST", "/api/topics/:topic/:channel", API._change),
            ("DELETE", "/api/topics/:topic/:channel", API._delete),
            ("GET", "/api/nodes", API._nodes),
            ("GET", "/api/nodes/:node", API._node),
            ("DELETE", "/api/nodes/:node", API._tombstone),
            ("GET", "/api/counter", API._counter),
            ("GET", "/api/graphite", API._graphite),
            ("GET", "/config/:opt", API._config),
            ("PUT", "/config/:opt", API._configure),
        ]
        if self.options.proxy_graphite:
            handlers.append(("GET", "/render", API._render))
        base = self.options.base_path.rstrip("/")
        return [(method, base + path, self._bound(handler)) for method, path, handler in handlers]

    def _bound(self, handler: Handler) -> Callable[[Request], Answer]:
        return lambda request: handler(self, request)

    # -- reading -------------------------------------------------------------------------------

    def _ping(self, request: Request) -> Answer:
        return Response("OK", plain=True)

    @_reads("get topics")
    def _topics(self, request: Request) -> Answer:
        wants_inactive = _query(request).get("inactive") == "true"
        topics, errors = self._cluster.topics()
        if wants_inactive:
            inactive, _ = self._cluster.inactive(topics or ())
            return {"topics": inactive, "message": warning(errors)}
        return {"topics": topics, "message": warning(errors)}

    @_reads("get topic metadata")
    def _topic(self, request: Request) -> Answer:
        topic, stages = self._cluster.topic(*request.path_values)
        return {**topic, "message": warning(*stages)}

    @_reads("get channel metadata")
    def _channel(self, request: Request) -> Answer:
        channel, stages = self._cluster.channel(*request.path_values)
        return {**(channel or {}), "message": warning(*stages)}

    @_reads("get nodes")
    def _nodes(self, request: Request) -> Answer:
        nodes, errors = self._cluster.nodes()
        return {"nodes": nodes or None, "message": warning(errors)}

    @_reads("get nodes")
    def _node(self, request: Request) -> Answer:
        (name,) = request.path_values
        topics, errors = self._cluster.node(name)
        if topics is None:
            raise HTTPFault(404, "NODE_NOT_FOUND")
        channels = [channel for topic in topics for channel in topic["channels"] or ()]
        return {
            "node": name,
            "topics": topics or None,
            "total_messages": sum(topic["message_count"] for topic in topics),
            "total_clients": sum(len(channel["clients"] or ()) for channel in channels),
            "message": warning(errors),
        }

    @_reads("get counter stats")
    def _counter(self, request: Request) -> Answer:
        stats, stages = self._cluster.counters()
        return {"stats": stats, "message": warning(*stages)}

    # -- writing -------------------------------------------------------------------------------

    @_acts
    @_reads("create topic/channel")
    def _create(self, request: Request) -> Answer:
        found = _body(request, "topic", "channel")
        topic, channel = found["topic"], found["channel"]
        if not valid_name(topic.encode()):
            raise HTTPFault(400, "INVALID_TOPIC")
        if channel and not valid_name(channel.encode()):
            raise HTTPFault(400, "INVALID_CHANNEL")
        errors = self._actions.create(topic, channel, visitor(request.environ))
        return {"message": warning(errors)}

    @_acts
    @_reads("change topic/channel")
    def _change(self, request: Request) -> Answer:
        verb = _VERBS.get(_body(request, "action")["action"])
        if verb is None:
            raise HTTPFault(400, "INVALID_ACTION")
        topic, channel = (*request.path_values, "")[:2]
        errors = self._actions.change(verb, topic, channel, visitor(request.environ))
        return {"message": warning(errors)}

    @_acts
    @_reads("delete topic/channel")
    def _delete(self, request: Request) -> Answer:
        topic, channel = (*request.path_values, "")[:2]
        errors = self._actions.delete(topic, channel, visitor(request.environ))
        return {"message": warning(errors)}

    @_acts
    @_reads("tombstone node")
    def _tombstone(self, request: Request) -> Answer:
        try:
            topic = _body(request, "topic")["topic"]
        except HTTPFault:
            raise HTTPFault(400, "INVALID_BODY") from None
        if not valid_name(topic.encode()):
            raise HTTPFault(400, "INVALID_TOPIC")
        (node,) = request.path_values
        try:
            errors = self._actions.tombstone(topic, node, visitor(request.environ))
        except NotListed:
            raise HTTPFault(404, "NODE_NOT_FOUND") from None
        return {"message": warning(errors)}

    # -- /config -------------------------------------------------------------------------------

    def _config(self, request: Request) -> Answer:
        self._check_config(request, changes=False)
        return self._value(*request.path_values)

    def _configure(self, request: Request) -> Answer:
        """Change the log level or the nsqlookupds, until this nsqadmin ends."""
        self._check_config(request, changes=True)
        (name,) = request.path_values
        body = request.read(CONFIG_LIMIT + 1)
        if not body or len(body) > CONFIG_LIMIT:
            raise HTTPFault(413, "INVALID_VALUE")
        if name == "log_level":
            level = body.decode("utf-8", "replace").lower()
            if level not in LEVELS:
                raise HTTPFault(400, "INVALID_VALUE")
            self._note_config(request, name, level)
            self.log.level = level
        elif name == "nsqlookupd_http_addresses":
            addresses = _addresses(body)
            self._note_config(request, name, ", ".join(map(shown, addresses)))
            self._cluster.lookupds = tuple(addresses)
        else:
            raise HTTPFault(400, "INVALID_OPTION")
        return self._value(name)

    def _note_config(self, request: Request, name: str, value: str) -> None:
        self._actions.note("configure", f"{name} to {value}", visitor(request.environ))

    def _check_config(self, request: Request, *, changes: bool) -> None:
        why = self.access.to_config(request.environ, changes=changes)
        if why:
            self._refuse(request, why)

    def _refuse(self, request: Request, why: str) -> NoReturn:
        path = url_path(request.environ["PATH_INFO"])
        self.log.warning("%s %s refused: %s", request.method, path, why)
        raise HTTPFault(403, "FORBIDDEN")

    def _value(self, name: str) -> Answer:
        if name not in config_names(AdminOptions):
            raise HTTPFault(400, "INVALID_OPTION")
        if name == "log_level":
            return LEVELS[self.log.level]
        if name == "nsqlookupd_http_addresses":
            return [shown(address) for address in self._cluster.lookupds]
        value: Answer = config_value(self.options, name)
        return value

    # -- graphite ------------------------------------------------------------------------------

    def _graphite(self, request: Request) -> Answer:
        """Answer the rate of a counter, from its first point in the interval before the last."""
        query = parse_query(request.environ.get("QUERY_STRING", ""))
        if query.get("metric") != "rate":
            raise HTTPFault(400, "INVALID_ARG_METRIC")
        if "target" not in query:
            raise HTTPFault(400, "INVALID_ARG_TARGET")
        interval = self.options.statsd_interval
        params = {
            "format": "json",
            "from": f"-{2 * interval:.0f}sec",
            "until": f"-{interval:.0f}sec",
            "target": query["target"],
        }
        self.log.info("GRAPHITE: /render of %r", query["target"])
        try:
            answer, content = self._ask_graphite(params)
            answer.raise_for_status()
            value = parse_json(content)[0]["datapoints"][0][0]
            rate = float(value) / interval
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            self.log.error("graphite request failed - %s", type(error).__name__)
            raise HTTPFault(500, "INTERNAL_ERROR") from None
        return {"rate": "N/A" if rate < 0 else f"{rate:.2f}"}

    def _render(self, request: Request) -> Answer:
        """Answer what graphite answers, for browsers that cannot reach graphite."""
        try:
            answer, content = self._ask_graphite(
                request.environ.get("QUERY_STRING", ""),
                headers={"X-Forwarded-For": request.environ.get("REMOTE_ADDR", "")},
            )
        except (requests.RequestException, ValueError) as error:
            self.log.error("graphite request failed - %s", type(error).__name__)
            return Response(status=502, plain=True)
        if answer.status_code < 200 or answer.status_code in (204, 304):
            return Response(status=answer.status_code, plain=True)
        kind = answer.headers.get("Content-Type", "application/octet-stream")
        return Response(content, answer.status_code, kind, plain=True)

    def _ask_graphite(self, params: Any, **keywords: Any) -> tuple[requests.Response, bytes]:
        """Return graphite's answer and its body. Errors of requests; ValueError if too large."""
        timeouts = (
            self.options.http_client_connect_timeout,
            self.options.http_client_request_timeout,
        )
        # requests moves user and password from the URL to a header.
        url = self.options.graphite_url.rstrip("/") + "/render"
        with requests.Session() as session:
            # nsqadmin uses neither proxies nor passwords of the environment.
            session.trust_env = False
            response = session.get(
                url, params=params, timeout=timeouts, allow_redirects=False, stream=True, **keywords
            )
            with response:
                deadline = time.monotonic() + sum(timeouts)
                parts = response.iter_content(PART)
                return response, read_whole(parts, GRAPHITE_LIMIT, deadline, ValueError)


def _query(request: Request) -> dict[str, str]:
    text = request.environ.get("QUERY_STRING", "")
    try:
        return parse_query(text)
    except HTTPFault:
        bad = _BAD_ESCAPE.search(text)
        if bad is None:
            raise HTTPFault(400, "invalid semicolon separator in query") from None
        raise HTTPFault(
            400, f'invalid URL escape "{text[bad.start() : bad.start() + 3]}"'
        ) from None


def _body(request: Request, *names: str) -> dict[str, str]:
    body = request.read(BODY_LIMIT + 1)
    if len(body) > BODY_LIMIT:
        raise HTTPFault(413, "REQUEST_TOO_LARGE")
    try:
        return read_first_object(body, dict.fromkeys(names, str))
    except ValueError as error:
        raise HTTPFault(400, str(error)) from None


def _addresses(body: bytes) -> list[str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPFault(400, "INVALID_VALUE") from None
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise HTTPFault(400, "INVALID_VALUE")
    return found
