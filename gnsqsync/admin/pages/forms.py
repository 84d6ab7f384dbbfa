"""The forms of the pages: the question before an action, the action, and its result.

Knows forms, tokens and rights. actions.py changes the servers.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any
from urllib.parse import parse_qsl

from gnsqsync.admin import dead_letters
from gnsqsync.admin.access import Access
from gnsqsync.admin.actions import Actions, NotListed, Visitor
from gnsqsync.admin.api import visitor
from gnsqsync.admin.cluster import AllFailed, Cluster, http_address
from gnsqsync.admin.overview import Overview
from gnsqsync.admin.pages.finding import Absent, Finding
from gnsqsync.admin.pages.rendering import VERBS, Rendering, token_of
from gnsqsync.admin.upstream import failures
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.daemon.web import Answer, HTTPFault, Request, Route
from gnsqsync.dead_letters.places import CHANNEL
from gnsqsync.stats import counted

__all__ = ["Forms"]

# Upper bound of a form, in bytes: one message, percent-encoded.
_FORM_LIMIT = 16 * 1024 * 1024

_DONE = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}


class Forms:
    """The handlers of forms. ``routes`` goes into ``web.App``."""

    def __init__(
        self,
        cluster: Cluster,
        overview: Overview,
        actions: Actions,
        access: Access,
        rendering: Rendering,
        log: Log,
    ) -> None:
        self._cluster = cluster
        self._overview = overview
        self._actions = actions
        self._access = access
        self._rendering = rendering
        self._log = log
        self._finding = Finding(cluster)

    def routes(self) -> list[Route]:
        """Return the routes, with paths below the base path."""
        routes: list[Route] = [
            ("GET", "/publish/:topic", self._publish),
            ("GET", "/confirm", self._confirm),
            ("GET", "/send-back", self._send_back),
            ("POST", "/do", self._do),
        ]
        return [
            (method, path, self._rendering.or_absent(handler)) for method, path, handler in routes
        ]

    def _publish(self, request: Request) -> Answer:
        (topic,) = request.path_values
        self._finding.topic(topic)
        nodes, errors = self._cluster.having(topic)
        return self._rendering.page(
            request, "publish.html", topic=topic, nodes=nodes, errors=failures(errors)
        )

    def _confirm(self, request: Request) -> Answer:
        """Show the question before an action, with the messages that will be lost."""
        verb, topic = request.get("verb") or "", request.get("topic") or ""
        channel, node = request.get("channel") or "", request.get("node") or ""
        if verb not in VERBS or not topic or (verb == "tombstone" and not node):
            raise HTTPFault(400, "INVALID_ACTION")
        found: Any = None
        errors: list[str] = []
        try:
            if verb == "tombstone":
                found, errors = self._finding.topic_at(topic, node)
            else:
                found, errors = self._found(topic, channel)
        except Absent as absent:
            # A topic that only nsqlookupds know can be deleted there.
            if absent.status == 404 and not (verb == "delete" and absent.unborn):
                raise
            errors = [] if absent.unborn else absent.text.splitlines()
        return self._rendering.page(
            request,
            "confirm.html",
            verb=verb,
            topic=topic,
            channel=channel,
            node=node,
            found=found,
            errors=errors,
        )

    def _found(self, topic: str, channel: str) -> tuple[Any, list[str]]:
        return self._finding.channel(topic, channel) if channel else self._finding.topic(topic)

    def _check(self, verb: str, topic: str, channel: str) -> None:
        """Raise Absent if the topic or channel is missing, because the action would do nothing."""
        try:
            self._found(topic, channel)
        except Absent as absent:
            if absent.status == 404 and not (verb == "delete" and absent.unborn):
                raise

    def _send_back(self, request: Request) -> Answer:
        """Show the question before dead letters go back, with the topic they will go to."""
        topic, channel = request.get("topic") or "", request.get("channel") or CHANNEL
        to, of = request.get("to") or "", request.get("of") or ""
        if not dead_letters.holds(topic, to, of):
            raise HTTPFault(400, "INVALID_TOPIC")
        rows = self._overview.picture().rows
        found = dead_letters.found_in(rows, to, of)
        mine = [each for each in found if each[:2] == (topic, channel)]
        waiting = sum(each.waiting for each in mine)
        return self._rendering.page(
            request,
            "send_back.html",
            topic=topic,
            channel=channel,
            to=to,
            of=of,
            waiting=waiting,
            most=dead_letters.MOST_AT_A_TIME,
            is_new=any(not each.exists for each in mine),
        )

    def _do(self, request: Request) -> Answer:
        why = self._access.to_act(request.environ) or self._access.to_post(request.environ)
        form = {} if why else _form(request)
        token = token_of(request) or secrets.token_hex()
        if not why and not hmac.compare_digest(form.get("token", "").encode(), token.encode()):
            why = "the form is too old; load the page again"
        if why:
            self._log.warning("%r of the pages refused: %s", form.get("verb", "an action"), why)
            return self._rendering.failure(request, "Not done", f"{why}.", 403)
        who = visitor(request.environ)
        topic, channel = form.get("topic", ""), form.get("channel", "")
        try:
            done, errors = self._act(form, who)
        except AllFailed as error:
            return self._rendering.failure(request, "Not done", str(error))
        except _Wrong as error:
            return self._rendering.failure(request, "Not done", str(error), 400)
        gone = form["verb"] == "delete"
        return self._rendering.page(
            request,
            "done.html",
            done=done,
            errors=errors,
            # Several servers are told of it, each by itself.
            is_shared=form["verb"] not in ("publish", "send_back"),
            topic="" if gone and not channel else topic,
            channel="" if gone else channel,
        )

    def _act(self, form: dict[str, str], who: Visitor) -> tuple[str, list[str]]:
        """Do the action. Return its text, or "" if a part failed, and the failures.

        Raises AllFailed and _Wrong.
        """
        topic, channel, node = (form.get(name, "") for name in ("topic", "channel", "node"))
        match form.get("verb"):
            case "create":
                if not _is_name(topic) or (channel and not _is_name(channel)):
                    raise _Wrong(
                        "A name has 1 to 64 of the characters . a-z A-Z 0-9 _ and -,"
                        " and may end with #ephemeral."
                    )
                errors = self._actions.create(topic, channel, who)
                done = f"Created: {_named(topic, channel)}."
            case "pause" | "unpause" | "empty" as verb:
                self._check(verb, topic, channel)
                # On an nsqd without the topic or channel there is nothing to do, as for a delete.
                errors = failures(self._actions.change(verb, topic, channel, who))
                done = f"{_DONE[verb]}: {_named(topic, channel)}."
            case "delete":
                self._check("delete", topic, channel)
                errors = failures(self._actions.delete(topic, channel, who))
                done = f"Deleted: {_named(topic, channel)}."
            case "tombstone":
                try:
                    errors = failures(self._actions.tombstone(topic, node, who))
                except NotListed as error:
                    raise _Wrong(str(error)) from None
                done = f"Topic {topic} is tombstoned on {node}."
            case "publish":
                self._finding.topic(topic)
                nodes, _ = self._cluster.having(topic)
                if node not in map(http_address, nodes):
                    raise _Wrong(f"{node} has no topic {topic}.")
                # Browsers send each line end of a form as CR LF.
                body = form.get("body", "").replace("\r\n", "\n")
                errors = self._actions.publish(topic, body.encode(), node, who)
                done = f"The message is published to {topic} on {node}."
            case "send_back":
                to = form.get("to", "")
                if not dead_letters.holds(topic, to, form.get("of", "")):
                    raise _Wrong(f"{topic} is not named as dead letters of {to}.")
                self._check("send_back", topic, "")
                self._actions.note("send back", f"dead letters of {topic} to {to}", who)
                count, errors = dead_letters.send_back(self._cluster, topic, channel, to, who.name)
                return f"{counted(count, 'message')} went from {topic} to {to}.", errors
            case verb:
                raise _Wrong(f"There is no action {verb!r}.")
        return "" if errors else done, errors


class _Wrong(Exception):
    """The form's action is impossible. The text has the reason."""


def _named(topic: str, channel: str) -> str:
    return f"channel {channel} of {topic}" if channel else f"topic {topic}"


def _is_name(text: str) -> bool:
    return valid_name(text.encode())


def _form(request: Request) -> dict[str, str]:
    body = request.read(_FORM_LIMIT + 1)
    if len(body) > _FORM_LIMIT:
        raise HTTPFault(413, "REQUEST_TOO_LARGE")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise HTTPFault(400, "INVALID_BODY") from None
