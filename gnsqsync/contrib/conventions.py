"""The names of OpenTelemetry's conventions for messaging that we use. They may still change.

https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

__all__ = [
    "BATCH_COUNT",
    "BODY_SIZE",
    "DESTINATION",
    "ERROR_TYPE",
    "GROUP",
    "MESSAGE_ID",
    "NSQ",
    "NSQ_ATTEMPTS",
    "OPERATION",
    "OPERATION_SECONDS",
    "OPERATION_TYPE",
    "PROCESS_SECONDS",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "SYSTEM",
]

SYSTEM = "messaging.system"
NSQ = "nsq"
OPERATION = "messaging.operation.name"
# The value is "send" or "process".
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
# The value is the channel.
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
BATCH_COUNT = "messaging.batch.message_count"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
# A name of our own, because no convention has attempts.
NSQ_ATTEMPTS = "messaging.nsq.message.attempts"

# Histograms, in seconds.
OPERATION_SECONDS = "messaging.client.operation.duration"
PROCESS_SECONDS = "messaging.process.duration"
