"""Take messages in lists, for instance to write each list to a database in one go."""

import signal

from gnsqsync import Reader

reader = Reader("orders", "archive", nsqd_tcp_addresses="127.0.0.1:4150", max_in_flight=100)
signal.signal(signal.SIGTERM, lambda number, frame: reader.stop(timeout=5))

with reader:
    for batch in reader.batches(max_messages=100, max_wait=1.0):
        if not batch:
            continue  # nothing arrived within max_wait
        print(f"storing {sorted(message.json()['number'] for message in batch)}", flush=True)
        reader.finish(batch)
