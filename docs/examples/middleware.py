"""The id of a request, from the view that publishes to the log lines of the handler."""

import logging
import sys
import time
from contextvars import ContextVar

from gnsqsync import Message, Middleware, Reader, Writer

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class CarryRequestId(Middleware):
    def publish(self, publication, proceed):
        publication.headers["requestid"] = request_id.get()
        return proceed(publication)

    def handle(self, message, handler, proceed):
        request_id.set(message.headers.get("requestid", "-"))
        return proceed(message)


class LogTimes(Middleware):
    def handle(self, message, handler, proceed):
        started = time.monotonic()
        try:
            return proceed(message)
        finally:
            logging.info("message %s took %.3f s", message.id, time.monotonic() - started)


class WithRequestId(logging.Filter):
    def filter(self, record):
        record.request_id = request_id.get()
        return True


output = logging.StreamHandler(sys.stdout)
output.addFilter(WithRequestId())
logging.basicConfig(
    level=logging.INFO, handlers=[output], format="[%(request_id)s] %(levelname)s %(message)s"
)


def handle(message: Message) -> None:
    logging.info("order %s", message.body.decode())
    reader.stop()


writer = Writer("127.0.0.1:4150", headers=True, middleware=[CarryRequestId()])
request_id.set("request 7")
writer.publish("orders", "1")
writer.close()
request_id.set("-")

reader = Reader(
    "orders",
    "billing",
    handle,
    nsqd_tcp_addresses="127.0.0.1:4150",
    headers=True,
    middleware=[CarryRequestId(), LogTimes()],
)
reader.start()
