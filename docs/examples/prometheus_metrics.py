"""A consumer that publishes what it made, with metrics on http://127.0.0.1:9150/metrics."""

import signal

from prometheus_client import start_http_server

from gnsqsync import Reader, Writer
from gnsqsync.prometheus import Metrics

metrics = Metrics()
writer = Writer("127.0.0.1:4150")
metrics.watch(writer)


def handle(message):
    writer.publish("invoices", message.body)


reader = Reader(
    "orders",
    "invoices",
    handle,
    nsqd_tcp_addresses="127.0.0.1:4150",
    observer=metrics.observer("orders", "invoices"),
)
metrics.watch(reader)
signal.signal(signal.SIGTERM, lambda number, frame: reader.stop())

if __name__ == "__main__":
    start_http_server(9150, addr="127.0.0.1")
    reader.start()
    writer.close()
