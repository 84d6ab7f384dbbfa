"""Messages that had their attempts: hook, dead letter and FIN; or a REQ, to wait in nsqd.

Knows the options, the Writer and a message's answers. Must not know RDY, backoff or workers.

Surprise: an order of steps keeps messages safe. The dead letter is published first, the FIN is sent
after its OK, and any failure on the way becomes a REQ.
"""

from __future__ import annotations

import logging

from gnsqsync import envelope
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.errors import BadMessage, ConfigError, Refused
from gnsqsync.foreign import ends_worker, line_of, repr_of, text_of
from gnsqsync.message import Discard, Fate, Message, Reject
from gnsqsync.observer import tell
from gnsqsync.options import check_ran
from gnsqsync.policy.requeue import spread
from gnsqsync.reader.death import death_headers
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.tries import Tries, which
from gnsqsync.runtime import Runtime
from gnsqsync.stats import counted
from gnsqsync.writer.writer import Writer

__all__ = ["DeadLetters", "retry_delay"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# Largest body in bytes. A body that nsqd has sent fits there; the limit is nsqd's own option.
_MOST_OF_ANY_NSQD = 2**31 - 1
# Upper bound of remembered kept messages. A remembered message makes no second ERROR.
_MOST_TOLD = 10_000
# Upper bound of remembered messages that ended their worker.
_MOST_DEADLY = 1_000
# Longest seconds until a message that cannot be given up comes again, after one second for each
# delivery. A longer ``requeue_delay`` comes before it.
_LONGEST_RETRY = 60.0


class DeadLetters:
    """Settles messages whose last attempt failed, on the thread that saw it, outside all locks.

    A dead letter is published at the nsqd that the message came from, and the message is finished
    only after its OK. Any failure means REQ, so no message is lost. Without options for given up
    messages, the message stays in nsqd. ``_lock`` guards the table of Writers, the counts, and
    the tables of messages.
    """

    def __init__(self, setup: ReaderSetup, runtime: Runtime) -> None:
        # Number of messages that were given up.
        self.count: int = 0
        # Number of messages for which a handler raised Discard.
        self.discarded: int = 0
        self._setup = setup
        self._flow = setup.flow
        # Name in log lines: topic, channel and handler.
        self._name = setup.name
        if setup.handler_name:
            self._name += f", handler {setup.handler_name}"
        self._runtime = runtime
        self._lock = runtime.lock()
        # Writers of dead letters, by the address of the nsqd.
        self._writers: dict[str, Writer] = {}
        # Kept messages for which an ERROR was logged, by nsqd and id, the oldest first.
        self._told: dict[tuple[str, str], None] = {}
        # Errors that ended a worker on the last attempt of a message, by nsqd and id. Workers read
        # it without the lock.
        self.killers: dict[tuple[str, str], BaseException] = {}
        self.tries: Tries = Tries(runtime, setup.flow.max_attempts)

    def note_deadly(self, message: Message, error: BaseException) -> None:
        """Remember a message that has ended its worker, which had no time to give it up.

        The next delivery in this process is given up before its handler is called.
        """
        if isinstance(error, KeyboardInterrupt):
            return  # the process ends
        if ends_worker(error):
            # The frames may hold the user's connections and files, and a kill is not logged.
            error.__traceback__ = None
        with self._lock:
            self.killers[which(message)] = error
            if len(self.killers) > _MOST_DEADLY:
                del self.killers[next(iter(self.killers))]

    def deadly(self, message: Message) -> BaseException | None:
        """Return the error that ended the worker on the last attempt of this message, or None."""
        return self.killers.get(which(message))

    def settle(
        self,
        connection: SubscribedConnection,
        message: Message,
        error: BaseException | None,
        *,
        rejected: bool = False,
    ) -> Fate:
        """Give a message up: answer it, without a flush.

        ``error``: exception of its handler, if one was raised. ``rejected``: True after ``Reject``.
        """
        fate = self._settle(connection, message, error, rejected)
        if fate is not Fate.REQUEUED and self.killers:
            with self._lock:
                self.killers.pop(which(message), None)
        return fate

    def _settle(
        self,
        connection: SubscribedConnection,
        message: Message,
        error: BaseException | None,
        rejected: bool,
    ) -> Fate:
        if not connection.is_in_flight(message):
            return Fate.GONE
        if not self._flow.gives_up:
            what = f"was rejected{_reason(error)}" if rejected else "failed"
            return self._keep(connection, message, what, _shown(error))
        if not (self._hook_took(message, error) and self._dead_letter_is_out(message, error)):
            delay = retry_delay(connection, message)
            return Fate.REQUEUED if connection.requeue_quietly(message, delay) else Fate.GONE
        if not connection.finish_quietly(message):
            self._log(
                logging.WARNING,
                "message %s was given up too late: it is not ours any more and comes again",
                message,
            )
            return Fate.GONE
        with self._lock:
            self.count += 1
        how = f"after {counted(message.attempts, 'attempt')}"
        if rejected:
            how = f"as it was rejected on attempt {message.attempts}{_reason(error)}"
        self._log(
            logging.ERROR,
            "gave up on message %s %s; %s",
            message,
            how,
            self._where_it_is(),
            error=_shown(error),
        )
        tell(self._setup.observers, "gave_up", message, error, log=log)
        return Fate.FINISHED

    def discard(
        self, connection: SubscribedConnection, message: Message, error: BaseException
    ) -> Fate:
        """Finish, without a flush, a message that its handler wants to drop."""
        if not connection.finish_quietly(message):
            return Fate.GONE
        with self._lock:
            self.discarded += 1
        reason = text_of(error.reason) if isinstance(error, Discard) else repr_of(error)
        self._log(
            logging.INFO, "message %s was discarded: %s", message, reason or "no reason given"
        )
        tell(self._setup.observers, "discarded", message, error, log=log)
        return Fate.FINISHED

    def _keep(
        self,
        connection: SubscribedConnection,
        message: Message,
        what: str,
        shown: BaseException | None,
    ) -> Fate:
        """Requeue a message with the longest delay. Log ERROR the first time, then WARNING."""
        seconds = self._flow.max_requeue_delay or retry_delay(connection, message)
        seconds = spread(message._id, message.attempts, seconds)
        if not connection.requeue_quietly(message, seconds):
            return Fate.GONE
        self._log(
            logging.ERROR if self._is_new(message) else logging.WARNING,
            "message %s %s on attempt %d (max_attempts=%d); it waits in nsqd and comes again in"
            " %g s; set dead_letter_topic or on_giving_up",
            message,
            what,
            message.attempts,
            self._flow.max_attempts,
            round(seconds, 1),
            error=shown,
        )
        return Fate.KEPT

    def _is_new(self, message: Message) -> bool:
        key = which(message)
        with self._lock:
            is_new = key not in self._told
            self._told[key] = None
            if len(self._told) > _MOST_TOLD:
                del self._told[next(iter(self._told))]
        return is_new

    def _hook_took(self, message: Message, error: BaseException | None) -> bool:
        hook = self._flow.on_giving_up
        if hook is None or hook == "discard":
            return True
        try:
            check_ran(hook(message, error), message)
        except BaseException as wrong:
            # The hook is the user's code. Whatever it raises, the message is requeued.
            if ends_worker(wrong):
                raise
            self._log(
                logging.WARNING,
                "on_giving_up failed on message %s; it is requeued",
                message,
                error=wrong,
            )
            return False
        return True

    def _dead_letter_is_out(self, message: Message, error: BaseException | None) -> bool:
        topic = self._flow.dead_letter_topic
        if topic is None:
            return True
        try:
            self._publish(topic, message, error)
        except BaseException as wrong:
            # Any error requeues the message; auth_secret may be a function of the user's.
            if ends_worker(wrong):
                raise
            self._log(
                logging.WARNING,
                "dead letter of message %s failed, it is requeued: %s",
                message,
                line_of(wrong),
            )
            return False
        return True

    def _publish(self, topic: str, message: Message, error: BaseException | None) -> None:
        writer = self._writer(message.nsqd_address)
        if not self._flow.headers:
            writer.publish(topic, _as_it_came(message))
            return
        try:
            headers = death_headers(message, error, self._setup.handler_name)
            writer.publish(topic, message.body, headers=headers)
        except (ConfigError, Refused) as wrong:
            # There are too many headers for the envelope, or the message is too long for nsqd.
            if isinstance(wrong, Refused) and not isinstance(wrong.error, BadMessage):
                raise
            self._log(
                logging.WARNING,
                "the dead letter of message %s is published without the reason: %s",
                message,
                wrong,
            )
            # Published as it came: there may be no room for a key, either, and its envelope may
            # have names that this package would refuse to write.
            writer.encoder.publish(topic, [_as_it_came(message)])

    def _where_it_is(self) -> str:
        flow = self._flow
        if flow.dead_letter_topic is not None:
            what = "it" if flow.headers else "its body"
            return f"{what} is in the topic {flow.dead_letter_topic}"
        return "it is discarded" if flow.on_giving_up == "discard" else "on_giving_up has it"

    def _log(
        self,
        level: int,
        text: str,
        message: Message,
        *args: object,
        error: BaseException | None = None,
    ) -> None:
        """Log a line. ``text`` has a place for the id of the message, then those for ``args``."""
        log.log(
            level,
            f"%s: {text}",
            self._name,
            message.id,
            *args,
            exc_info=error,
            extra=self._setup.fields_of(message),
        )

    def _writer(self, address: str) -> Writer:
        with self._lock:
            writer = self._writers.get(address)
            if writer is None:
                writer = Writer(
                    address,
                    options=self._setup.options,
                    runtime=self._runtime,
                    headers=self._flow.headers,
                    max_msg_size=_MOST_OF_ANY_NSQD,
                )
                self._writers[address] = writer
            return writer

    def stuck(self, name: str) -> list[str]:
        """Return a sentence for each hung thread of the Writers. Takes no lock."""
        return [
            line for writer in list(self._writers.values()) for line in writer.health(name).threads
        ]

    def close(self) -> None:
        with self._lock:
            writers = list(self._writers.values())
        for writer in writers:
            writer.close()


def _as_it_came(message: Message) -> bytes:
    """Return the bytes that nsqd delivered, even if the envelope was opened since."""
    if not message._is_opened:
        return message.body
    return envelope.restore(message.headers, message.body)


def retry_delay(connection: SubscribedConnection, message: Message) -> float:
    """Return the seconds until redelivery of a message that could not be given up.

    They grow with each delivery, even if ``requeue_delay`` is 0: the Reader has no backoff then.
    """
    seconds = min(float(message.attempts), _LONGEST_RETRY)
    return max(connection.requeue_delay_for(message), seconds)


def _reason(error: BaseException | None) -> str:
    """Return the reason of a Reject, for a log line that shows only its cause below."""
    reason = text_of(error.reason) if isinstance(error, Reject) else ""
    return f" ({reason})" if reason else ""


def _shown(error: BaseException | None) -> BaseException | None:
    """Return the error whose traceback a log line shows: the cause of a Reject, else itself."""
    return error.__cause__ if isinstance(error, Reject) else error
