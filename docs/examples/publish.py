"""Publish to an nsqd: one message, one for later, many at once, and what an error means."""

import sys

from gnsqsync import Writer
from gnsqsync.errors import NotSent, OutcomeUnknown, Refused

with Writer("127.0.0.1:4150") as writer:
    try:
        writer.publish("orders", b'{"number": 1}')
        writer.publish("orders", '{"number": 2}', defer=0.5)
        writer.publish_many("orders", ['{"number": 3}', '{"number": 4}'])
    except NotSent as error:
        sys.exit(f"no nsqd has it, publishing again is safe: {error}")
    except Refused as error:
        sys.exit(f"nsqd said no, with {error.code}: {error}")
    except OutcomeUnknown as error:
        sys.exit(f"nsqd may have it, publishing again may duplicate it: {error}")

    future = writer.publish_async("orders", '{"number": 5}')
    # ... other work ...
    future.result(timeout=10)

    print(f"{writer.stats().published} published")
