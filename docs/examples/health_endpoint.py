"""Health of a group of Readers and a Writer, as a WSGI application for the probes of a platform.

``/livez`` is 503 while a restart would help: a thread hangs, or a handler runs for ten minutes.
``/readyz`` is 503 while no message can come.
"""

from collections.abc import Iterable
from wsgiref.simple_server import make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from gnsqsync import Message, Reader, ReaderGroup, Writer
from gnsqsync.stats import Health

HANDLER_SECONDS = 600.0


class HealthEndpoint:
    """A WSGI application, which a thread of its own should serve."""

    def __init__(self, readers: ReaderGroup, writer: Writer) -> None:
        self.readers = readers
        self.writer = writer

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        health = Health.of([self.readers.health(HANDLER_SECONDS), self.writer.health("orders")])
        if environ["PATH_INFO"] == "/livez":
            problems = health.stuck
        elif environ["PATH_INFO"] == "/readyz":
            problems = [*health.not_ready]
        else:
            start_response("404 Not Found", [("Content-Length", "0")])
            return []
        body = "".join(f"{line}\n" for line in problems or ["well"]).encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        start_response("503 Service Unavailable" if problems else "200 OK", headers)
        return [body]


def handle(message: Message) -> None:
    print(message.body.decode())


def main() -> None:
    readers = ReaderGroup([Reader("orders", "shop", handle, nsqd_tcp_addresses="127.0.0.1:4150")])
    with Writer("127.0.0.1:4150") as writer, readers:
        endpoint = HealthEndpoint(readers, writer)
        with make_server("127.0.0.1", 8000, endpoint) as server:
            server.serve_forever()


if __name__ == "__main__":
    main()
