"""What the rows share: server flags, the rows that mostly wait, and their threads.

A row that waits for seconds is marked with @waiting. Its body starts in a thread when the first
test of its file starts, so that all waits overlap; the test itself collects the outcome. Without
pytest-xdist all of them start with the first conformance test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support.rawclient import post
from tests.support.servers import Cancelled, Pool, Server, Site, unique

SMALL = (
    "-max-msg-size=1000",
    "-max-body-size=5000",
    "-max-req-timeout=10s",
    "-max-rdy-count=100",
    "-max-channel-consumers=2",
    "-mem-queue-size=5",
)

UNKNOWN_ID = "0123456789abcdef"

Body = Callable[[Site], None]


def waiting(body: Body) -> Callable[..., None]:
    """Turn a row into a test that collects what the row's thread found."""

    def test(server_kind: str, waiting_rows: WaitingRows) -> None:
        waiting_rows.collect(body, server_kind)

    test.__name__ = body.__name__
    test.__module__ = body.__module__
    test.__doc__ = body.__doc__
    test.waiting_body = body  # type: ignore[attr-defined]
    return test


def waiting_body(item: pytest.Item) -> Body | None:
    """The body of a test made by @waiting, else None."""
    return getattr(getattr(item, "function", None), "waiting_body", None)


class _Row(threading.Thread):
    def __init__(self, body: Body, site: Site) -> None:
        super().__init__(name=f"row {body.__name__} {site.kind}", daemon=True)
        self.body = body
        self.site = site
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.body(self.site)
        except BaseException as error:  # also pytest's skip and fail
            self.error = error
        finally:
            self.site.close()


class WaitingRows:
    """The threads of the waiting rows of this process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rows: dict[tuple[Body, str], _Row] = {}

    def start(self, items: Iterable[Any]) -> None:
        """The rows among these tests that have not started yet."""
        for item in items:
            body = waiting_body(item)
            if body is None:
                continue
            kind = item.callspec.params["server_kind"]
            if (body, kind) not in self._rows:
                self._rows[body, kind] = row = _Row(body, Site(kind, self._pool))
                row.start()

    def collect(self, body: Body, kind: str) -> None:
        """Wait for the end of a row and raise what it raised."""
        row = self._rows[body, kind]
        row.join()
        if row.error is not None:
            raise row.error

    def close(self) -> None:
        for row in self._rows.values():
            row.site.cancel()
        for row in self._rows.values():
            row.join(30)
            if isinstance(row.error, Cancelled):
                row.error = None


def create_channel(server: Server, topic: str, channel: str) -> None:
    """Create topic and channel over HTTP."""
    quoted = topic.replace("#", "%23")
    assert post(server.http_address, f"/topic/create?topic={quoted}").status == 200
    target = f"/channel/create?topic={quoted}&channel={channel.replace('#', '%23')}"
    assert post(server.http_address, target).status == 200


def warm_channel(site: Site, server: Server, channel: str = "c") -> str:
    """A new topic whose channel nsqd's queue scan knows by now
    (docs/protocol/timeouts#queue-scan)."""
    topic = unique("warm")
    create_channel(server, topic, channel)
    site.sleep(5.3)
    return topic
