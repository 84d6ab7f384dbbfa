"""A blocking call on the thread of an event loop warns. The guide's applications run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gnsqsync
from gnsqsync import NsqdHTTP, Reader, ReaderGroup, Writer
from gnsqsync.embedded import Nsqd
from gnsqsync.errors import ClosedError
from tests.support.texts import DOCS, code_blocks


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


@pytest.fixture
def writer(nsqd: Nsqd) -> Iterator[Writer]:
    with Writer([nsqd.tcp_address]) as writer:
        yield writer


def depths(nsqd: Nsqd) -> dict[str, int]:
    return {topic.topic_name: topic.depth for topic in NsqdHTTP(nsqd.http_address).stats().topics}


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(
    ("name", "publish"),
    [
        ("publish", lambda writer: writer.publish("t", b"1")),
        ("publish_many", lambda writer: writer.publish_many("t", [b"1"])),
    ],
)
def test_a_publish_on_the_thread_of_the_loop_is_told_once(
    nsqd: Nsqd, writer: Writer, name: str, publish: Callable[[Writer], None]
) -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match=rf"^Writer.{name}\(\) blocks the event") as told:
            publish(writer)
        assert [warning.filename for warning in told] == [__file__], "not the line of the caller"
        with no_warning():
            publish(writer)

    asyncio.run(main())
    assert depths(nsqd) == {"t": 2}


def test_calls_that_do_not_stop_the_loop_are_not_told(nsqd: Nsqd, writer: Writer) -> None:
    async def main() -> None:
        with no_warning():
            await asyncio.to_thread(writer.connect)
            await asyncio.to_thread(writer.publish, "t", b"1")
            await asyncio.wrap_future(writer.publish_async("t", b"2"))

    asyncio.run(main())
    with no_warning():
        writer.publish("t", b"3")
    assert depths(nsqd) == {"t": 3}


@pytest.mark.parametrize("kind", ["reader", "group"])
def test_a_start_that_blocks_the_loop_is_told(nsqd: Nsqd, writer: Writer, kind: str) -> None:
    writer.publish("t", b"1")
    stoppable: list[Any] = []

    def stop(message: gnsqsync.Message) -> None:
        for each in stoppable:
            each.stop()

    reader = Reader("t", "ch", stop, nsqd_tcp_addresses=[nsqd.tcp_address])
    one: Any = reader if kind == "reader" else ReaderGroup([reader])
    stoppable.append(one)

    async def main() -> None:
        with pytest.warns(RuntimeWarning, match=r"^start\(\) blocks the event loop"):
            one.start()

    asyncio.run(main())


def test_a_process_without_asyncio_does_not_import_it(nsqd: Nsqd) -> None:
    program = f"""
import sys, gnsqsync
with gnsqsync.Writer(["{nsqd.tcp_address}"]) as writer:
    writer.publish("t", b"1")
print("asyncio" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


# -- the applications of the page ----------------------------------------------------------------


def application(number: int, nsqd: Nsqd) -> dict[str, Any]:
    block = code_blocks(DOCS / "guides" / "asyncio.rst", "python")[number]
    assert "127.0.0.1:4150" in block
    names: dict[str, Any] = {}
    exec(block.replace("127.0.0.1:4150", nsqd.tcp_address), names)
    return names


def test_fastapi(nsqd: Nsqd) -> None:
    pytest.importorskip("fastapi")
    import httpx

    names = application(0, nsqd)

    async def main() -> None:
        app = names["app"]
        async with (
            names["lifespan"](app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="http://shop"
            ) as browser,
        ):
            for path in ("/orders/1", "/refunds/2"):
                assert (await browser.post(path)).status_code == 202

    with no_warning():
        asyncio.run(main())
    assert depths(nsqd) == {"orders": 1, "refunds": 1}
    with pytest.raises(ClosedError):
        names["writer"].publish("orders", b"late")


def test_tornado(nsqd: Nsqd) -> None:
    pytest.importorskip("tornado")
    from tornado.httpclient import AsyncHTTPClient
    from tornado.httpserver import HTTPServer
    from tornado.testing import bind_unused_port

    names = application(1, nsqd)

    async def main() -> None:
        listener, port = bind_unused_port()
        server = HTTPServer(names["make_app"]())
        server.add_socket(listener)
        answer = await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{port}/orders/7", method="POST", body=""
        )
        assert answer.code == 202
        await names["report"]()
        server.stop()
        await server.close_all_connections()

    with no_warning():
        asyncio.run(main())
    assert depths(nsqd) == {"orders": 1, "reports": 1}
    names["writer"].close()
