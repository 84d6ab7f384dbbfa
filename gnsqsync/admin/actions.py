"""Actions on a cluster through nsqadmin, and the notifications of actions.

Knows the servers of each action and their order. Does not know the rights of visitors.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import requests

from gnsqsync.admin.cluster import Cluster, http_address
from gnsqsync.admin.shapes import Shape
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.secrets import server_of

__all__ = ["Actions", "NotListed", "Notifications", "Verb", "Visitor"]

# Upper bound of notifications that wait for a slow endpoint.
_MOST_NOTIFICATIONS = 1000

Verb = Literal["pause", "unpause", "empty"]
# Actions that lose messages: a WARNING in the log.
_DESTROYING = {"delete", "empty", "tombstone"}


class NotListed(Exception):
    """No nsqlookupd lists the nsqd of an action. The text names the nsqd."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person who acts: the parts of a request that go into a notification.

    ``remote_ip`` is ``ip:port``. ``record`` keeps a verb and its object for the application around
    nsqadmin.
    """

    user: str
    remote_ip: str
    user_agent: str
    url: str
    record: Callable[[str, str], object] | None = None

    @property
    def name(self) -> str:
        """User and address for the log."""
        return f"{self.user!r} of {self.remote_ip}" if self.user else self.remote_ip


class Notifications:
    """A background thread that POSTs one JSON object for each action to an endpoint.

    A notification that cannot be delivered is logged and not tried again.

    Args:
        endpoint: A URL, or "" for no notifications.
        timeout: Seconds to connect, and seconds for the answer.
        verify: The argument of this name of requests.
        cert: The argument of this name of requests.
    """

    def __init__(
        self,
        endpoint: str,
        log: Log,
        *,
        timeout: tuple[float, float],
        verify: bool | str,
        cert: tuple[str, str] | None,
    ) -> None:
        self._endpoint = endpoint
        # Name of the endpoint in the log.
        self._place = server_of(endpoint)
        self._log = log
        self._timeout = timeout
        self._verify = verify
        self._cert = cert
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_NOTIFICATIONS)
        # Guards ``_thread``.
        self._lock = threading.Lock()
        # The thread, from the first notification until ``close``.
        self._thread: threading.Thread | None = None
        # True after ``close``: the thread sends no further notification.
        self._is_cut = False

    def send(self, action: str, visitor: Visitor, *, topic: str, **names: str) -> None:
        """Queue a notification and return at once. ``names``: ``channel`` and ``node``, if any."""
        if not self._endpoint:
            return
        told = {
            "action": action,
            "topic": topic,
            **{name: value for name, value in names.items() if value},
            "timestamp": int(time.time()),
            **({"user": visitor.user} if visitor.user else {}),
            "remote_ip": visitor.remote_ip,
            "user_agent": visitor.user_agent,
            "url": visitor.url,
            "via": socket.gethostname(),
        }
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gnsqsync-admin-notify", daemon=True
                )
                self._thread.start()
        try:
            self._waiting.put_nowait(told)
        except queue.Full:
            self._log.error(
                "%s is not notified of %s %s: %d notifications wait for it",
                self._place,
                action,
                topic,
                _MOST_NOTIFICATIONS,
            )

    def close(self, timeout: float = 1.0) -> None:
        """Send the waiting notifications for up to ``timeout`` seconds.

        The notification that is being sent at that time may still arrive.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            deadline = time.monotonic() + timeout
            try:
                self._waiting.put(None, timeout=timeout)
                thread.join(max(0.0, deadline - time.monotonic()))
            except queue.Full:
                self._log.error("%s is too slow for the notifications that wait", self._place)
            self._is_cut = True

    def _run(self) -> None:
        while (told := self._waiting.get()) is not None and not self._is_cut:
            self._log.info("POSTing notification to %s", self._place)
            try:
                with self._posted(told) as answer:
                    answer.raise_for_status()
            except (requests.RequestException, ValueError) as error:
                self._log.error("failed to POST notification - %s", _why(error))

    def _posted(self, told: dict[str, Any]) -> requests.Response:
        with requests.Session() as session:
            # nsqadmin uses neither proxies nor passwords of the environment.
            session.trust_env = False
            return session.post(
                self._endpoint,
                json=told,
                timeout=self._timeout,
                verify=self._verify,
                cert=self._cert,
            )


class Actions:
    """Changes of a cluster. Each method returns the failures, a line for each server.

    A method raises AllFailed if the nsqds of the topic cannot be found. Changes that it has already
    made on nsqlookupds stay.

    Threads:
        Any thread may call.
    """

    def __init__(self, cluster: Cluster, notifications: Notifications, log: Log) -> None:
        self._cluster = cluster
        self._notifications = notifications
        self._log = log

    def create(self, topic: str, channel: str, visitor: Visitor) -> list[str]:
        """Create a topic on all nsqlookupds, and a channel there and on the nsqds.

        ``channel``: "" creates the topic alone.
        """
        self.note("create", _words(topic, channel), visitor)
        errors = self._tell_lookupds("/topic/create", topic=topic)
        if channel:
            errors += self._tell_lookupds("/channel/create", topic=topic, channel=channel)
            nodes, failed = self._cluster.listed(topic)
            errors += failed + self._tell(nodes, "/channel/create", topic=topic, channel=channel)
        self._notifications.send("create_topic", visitor, topic=topic)
        if channel:
            self._notifications.send("create_channel", visitor, topic=topic, channel=channel)
        return errors

    def delete(self, topic: str, channel: str, visitor: Visitor) -> list[str]:
        """Delete a topic with its channels, or one channel, everywhere."""
        self.note("delete", _words(topic, channel), visitor)
        names, kind = _names(topic, channel)
        nodes, errors = self._find(topic)
        errors += self._tell_lookupds(f"/{kind}/delete", **names)
        errors += self._tell(nodes, f"/{kind}/delete", **names)
        self._notifications.send(f"delete_{kind}", visitor, topic=topic, channel=channel)
        return errors

    def change(self, verb: Verb, topic: str, channel: str, visitor: Visitor) -> list[str]:
        """Pause, unpause or empty a topic or a channel on all nsqds that have the topic."""
        names, kind = _names(topic, channel)
        self.note(verb, _words(topic, channel), visitor)
        try:
            nodes, errors = self._find(topic)
            return errors + self._tell(nodes, f"/{kind}/{verb}", **names)
        finally:
            # The Go program also notifies of an action that has failed.
            self._notifications.send(f"{verb}_{kind}", visitor, topic=topic, channel=channel)

    def tombstone(self, topic: str, node: str, visitor: Visitor) -> list[str]:
        """Have nsqlookupds hide ``node`` for the topic, and delete the topic on it.

        NotListed if no nsqlookupd lists ``node``: a visitor must not choose the server to which
        this machine sends a request.
        """
        self.note("tombstone", f"{_words(topic, '')} on {node}", visitor)
        self._cluster.forget()
        nodes, errors = self._cluster.nodes()
        if not self._cluster.lookupds or node not in map(http_address, nodes):
            raise NotListed(f"No nsqlookupd lists an nsqd {node}.")
        errors += self._tell_lookupds("/topic/tombstone", topic=topic, node=node)
        errors += self._cluster.post("nsqd", [node], "/topic/delete", {"topic": topic})
        self._notifications.send("tombstone_topic_producer", visitor, topic=topic, node=node)
        return errors

    def publish(self, topic: str, body: bytes, node: str, visitor: Visitor) -> list[str]:
        """Publish one message to the nsqd ``broadcast_address:http_port``."""
        self.note("publish", f"a message to topic {topic} on {node}", visitor)
        return self._cluster.post("nsqd", [node], "/pub", {"topic": topic}, body)

    def note(self, verb: str, what: str, visitor: Visitor) -> None:
        """Log and record an action before it begins, so that nothing is done without a record."""
        if verb in _DESTROYING:
            self._log.warning("%s of %s is asked for by %s", verb, what, visitor.name)
        else:
            self._log.info("%s of %s by %s", verb, what, visitor.name)
        if visitor.record is not None:
            visitor.record(verb, what)

    def _find(self, topic: str) -> tuple[list[Shape], list[str]]:
        # The list of nsqds to change must not come from the cache.
        self._cluster.forget()
        return self._cluster.having(topic)

    def _tell_lookupds(self, path: str, **params: str) -> list[str]:
        self._cluster.forget()
        return self._cluster.post("nsqlookupd", self._cluster.lookupds, path, params)

    def _tell(self, nodes: list[Shape], path: str, **params: str) -> list[str]:
        addresses = [http_address(node) for node in nodes]
        return self._cluster.post("nsqd", addresses, path, params)


def _words(topic: str, channel: str) -> str:
    return f"channel {channel} of {topic}" if channel else f"topic {topic}"


def _why(error: Exception) -> str:
    """Return the reason of a failed POST, without the URL, which requests' own texts quote."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"got response {error.response.status_code}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _names(topic: str, channel: str) -> tuple[dict[str, str], str]:
    if channel:
        return {"topic": topic, "channel": channel}, "channel"
    return {"topic": topic}, "topic"
