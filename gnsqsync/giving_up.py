"""What happens to a message that had its attempts: the hook, the dead-letter topic, then FIN."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gnsqsync.config import ConnectionOptions
from gnsqsync.errors import NSQError
from gnsqsync.message import Message
from gnsqsync.observer import Observer
from gnsqsync.reader_options import ReaderOptions
from gnsqsync.runtime import Runtime
from gnsqsync.writer import Writer

__all__ = ["GivingUp"]

log = logging.getLogger("gnsqsync.reader")

# Bytes. What an nsqd has sent, it takes; how much that may be is its own option.
_MOST_OF_ANY_NSQD = 2**31 - 1


class GivingUp:
    """Settles messages over the limit of attempts. Called by workers, outside all locks.

    A dead letter is published at the nsqd that the message came from, and the message is
    finished only after its OK; whatever fails means REQ, so nothing is lost on the way.
    ``_lock`` guards the table of Writers and the count.
    """

    def __init__(
        self,
        flow: ReaderOptions,
        options: ConnectionOptions,
        runtime: Runtime,
        observer: Observer,
        log_fields: Mapping[str, str],
    ) -> None:
        self.count = 0
        self._flow = flow
        self._options = options
        self._runtime = runtime
        self._observer = observer
        self._log_fields = log_fields
        self._lock = runtime.lock()
        self._writers: dict[str, Writer] = {}

    def settle(self, message: Message) -> bool:
        """True: finish it. False: requeue it, something failed on the way."""
        flow = self._flow
        extra = {
            **self._log_fields,
            "message_id": message.id,
            "attempts": message.attempts,
            "nsqd": message.nsqd_address,
        }
        try:
            if flow.on_giving_up is not None:
                flow.on_giving_up(message)
        except Exception:
            log.warning(
                "on_giving_up failed on message %s; it is requeued",
                message.id,
                exc_info=True,
                extra=extra,
            )
            return False
        try:
            if flow.dead_letter_topic is not None:
                self._writer(message.nsqd_address).publish(flow.dead_letter_topic, message.body)
        except NSQError as error:
            log.warning(
                "dead letter of message %s failed, it is requeued: %s",
                message.id,
                error,
                extra=extra,
            )
            return False
        with self._lock:
            self.count += 1
        log.warning(
            "gave up on message %s after %d attempts (max_attempts=%d)",
            message.id,
            message.attempts - 1,
            flow.max_attempts,
            extra=extra,
        )
        try:
            self._observer.gave_up(message)
        except (Exception, SystemExit):
            log.exception("the observer's gave_up failed")
        return True

    def _writer(self, address: str) -> Writer:
        with self._lock:
            writer = self._writers.get(address)
            if writer is None:
                writer = Writer(
                    address,
                    options=self._options,
                    runtime=self._runtime,
                    max_msg_size=_MOST_OF_ANY_NSQD,
                )
                self._writers[address] = writer
            return writer

    def close(self) -> None:
        with self._lock:
            writers = list(self._writers.values())
        for writer in writers:
            writer.close()
