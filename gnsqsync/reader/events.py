"""Log lines of a Reader, and hooks of its Observers, about connections, pauses and answers.

Decides only which lines to leave out because the process has just logged the same. Every method
is called outside all locks, on the thread where the event happened.

A method logs at most one line, and calls the hooks of the Observers.

Surprise: many lines are missing on purpose. All Readers and Writers of a process share one memory
of troubles, so a second Reader at the same dead nsqd logs nothing.
"""

from __future__ import annotations

import logging

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.errors import NSQError, ServerError
from gnsqsync.observer import Observer, tell
from gnsqsync.policy.backoff import Rule, Step
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.rdy_control import UNCONNECTED
from gnsqsync.reader.timings import Late
from gnsqsync.runtime.troubles import AWAY, duration, kind_of, more, troubles, used_by
from gnsqsync.stats import counted

__all__ = ["Events"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


def _time_of(late: Late) -> str:
    messages = "" if late.messages == 1 else f" for {late.messages} messages"
    waited = f", after the message had waited here for {duration(late.waited)}"
    return (
        f", and its handler took {duration(late.seconds)}{messages}{waited * (late.waited >= 0.1)}"
    )


class Events:
    """Words, levels and ``extra=`` fields of a Reader's log lines, in one place."""

    def __init__(self, setup: ReaderSetup) -> None:
        self._name = setup.name
        self._fields = setup.log_fields
        self._handler = setup.handler_name
        # Seconds that nsqd must grant a handler, until a warning has said that an nsqd grants less.
        # Empty if auto_touch asks for more time. A pop takes them, so only one of several
        # connections that open at the same moment warns.
        time_limit = setup.flow.time_limit
        self._needed = [] if setup.flow.auto_touch or not time_limit else [time_limit]
        self._observers = setup.observers
        # True if an Observer wants the time of chunks, which costs a look at the clock.
        self.observes_batches: bool = any(
            type(one).batch is not Observer.batch for one in setup.observers
        )
        # True once an overdue answer was logged as a WARNING; later ones are DEBUG.
        self._told_overdue = False
        # True once a failure of the user's backoff strategy was logged. It is logged once.
        self._told_strategy = False

    def notify(self, hook: str, *args: object) -> None:
        """Call a hook of the observers. An error of an observer is logged and changes nothing."""
        tell(self._observers, hook, *args, log=log, who=f"{self._name}: ", extra=self._fields)

    def batch(
        self, connection: SubscribedConnection, finished: int, failed: int, seconds: float
    ) -> None:
        """Report a chunk that a worker has handled."""
        self.notify("batch", connection.nsqd_address, finished, failed, seconds)

    def dials(self, address: str) -> None:
        """Note this Reader as a user of the nsqd, so that lines of others name the Reader, too."""
        troubles().uses(address, self, self._name)

    def leaves(self, address: str | None = None) -> None:
        """Note that the Reader does not use this nsqd any more; None means any nsqd."""
        troubles().leaves(self, address)

    def connected(self, connection: SubscribedConnection) -> None:
        address = connection.nsqd_address
        extra = self._fields_of(connection)
        over = troubles().ended(address)
        if over is not None:
            log.warning(
                "%s is back after %s; %s consumes from it again%s",
                address,
                duration(over.seconds),
                self._name,
                used_by(over, "consumers"),
                extra=extra,
            )
        log.info("%s subscribed at %s", self._name, address, extra=extra)
        self._check_limit(connection)
        self.notify("connected", address)

    def _check_limit(self, connection: SubscribedConnection) -> None:
        """Warn once if an nsqd gives messages to somebody else before ``time_limit`` has passed."""
        if not any(connection.msg_timeout < needed for needed in self._needed):
            return
        try:
            needed = self._needed.pop()
        except IndexError:
            return  # another connection has warned at this moment
        log.warning(
            "%s: time_limit is %g s, but %s gives a message to somebody else after %g s, while"
            " its handler may still run; raise msg_timeout, lower time_limit or set auto_touch",
            self._name,
            needed,
            connection.nsqd_address,
            connection.msg_timeout,
            extra=self._fields_of(connection),
        )

    def crowd(self, limit: int) -> None:
        """Warn that there are more nsqds than max_in_flight."""
        log.warning(
            "%s has more nsqds than max_in_flight, which is %d: they take turns, and messages"
            " wait; raise it",
            self._name,
            limit,
            extra=self._fields,
        )

    def dial_failed(
        self,
        connection: SubscribedConnection,
        error: NSQError,
        pause: float | None,
        *,
        discovered: bool,
    ) -> None:
        """Report a failed dial. ``pause``: seconds until the next try, or None without one."""
        hint = ""
        if discovered:
            hint = " (if the address is wrong, see nsqd's --broadcast-address, or address_map)"
        address = connection.nsqd_address
        if error.retriable and pause is None:
            tell = troubles().happened(address, "unlisted")
            next_try = "no nsqlookupd lists it, so it is not tried again"
        else:
            tell = troubles().began(address, kind_of(error, self._name))
            next_try = f"it is tried again in {duration(pause or 0.0)}"
            if not error.retriable:
                next_try = "trying again will not help before that is changed"
        if tell is not None:
            log.log(
                logging.WARNING if error.retriable else logging.ERROR,
                "%s: %s%s; %s%s%s",
                self._name,
                error,
                hint,
                next_try,
                used_by(tell, "consumers"),
                more(tell),
                extra=self._fields_of(connection),
            )
        if pause is None:
            self.leaves(address)
        self.notify("lost", address, error)

    def lost(
        self,
        connection: SubscribedConnection,
        reason: Exception,
        pause: float | None,
        *,
        discovered: bool,
    ) -> None:
        """Report a loss. ``pause``: seconds until a dial or question; None if it is not wanted."""
        address = connection.nsqd_address
        extra = self._fields_of(connection)
        if connection.end_was_asked:
            log.debug("%s closed as asked", address, extra=extra)
        else:
            tell = troubles().began(address, AWAY)
            if tell is not None:
                next_step = "nsqlookupds are asked for it" if discovered else "it is dialled again"
                log.warning(
                    "%s: lost %s: %s%s%s%s",
                    self._name,
                    address,
                    reason,
                    "" if pause is None else f"; {next_step} in {duration(pause)}",
                    used_by(tell, "consumers"),
                    more(tell),
                    extra=extra,
                )
        self.notify("lost", address, reason)

    def silent(self, seconds: float, reason: str, asked_for: bool) -> None:
        """Log that RDY was 0 everywhere for long, quietly if an outage was logged as the reason."""
        level = logging.INFO if asked_for else logging.WARNING
        if reason == UNCONNECTED and troubles().is_told(self):
            level = logging.DEBUG
        log.log(
            level,
            "%s has had RDY 0 everywhere for %.0f s: %s",
            self._name,
            seconds,
            reason,
            extra=self._fields,
        )

    def testing(self) -> None:
        log.info("%s tests with RDY 1: one message comes", self._name, extra=self._fields)

    def grows(self) -> None:
        log.info(
            "%s: the test succeeded; the limit of messages in flight doubles with each success",
            self._name,
            extra=self._fields,
        )

    def pauses(self, step: Step, rule: Rule) -> None:
        """Report that a pause of the backoff begins. A WARNING once for each climb."""
        who = f"handler {self._handler}" if self._handler else "it"
        if not step.is_new_climb:
            why = f"{who} failed again"
        elif rule is Rule.EVERY_FAILURE:
            why = f"{who} failed"
        else:
            why = (
                f"{who} failed on {step.failures} different messages in {duration(step.stretch)},"
                " which outweighs the successes meanwhile"
            )
        log.log(
            logging.WARNING if step.is_new_climb else logging.INFO,
            "%s backs off for %.1f s (level %d), as %s; all its messages wait until then, and then"
            " one comes as a test",
            self._name,
            step.seconds,
            step.level,
            why,
            extra=self._fields,
        )
        self.notify("backoff", step.level, step.seconds)

    def is_out_of_backoff(self) -> None:
        log.info("%s is out of backoff", self._name, extra=self._fields)
        self.notify("backoff", 0, 0.0)

    def fails_in_a_row(self, count: int, *, pauses: bool) -> None:
        """Warn that different messages failed, with no success between."""
        log.warning(
            "%s: %d different messages failed one after the other, with no success between%s%s",
            self._name,
            count,
            f", in handler {self._handler}" if self._handler else "",
            "" if pauses else "; it goes on without a pause",
            extra=self._fields,
        )

    def strategy(self, error: BaseException | None) -> None:
        """Log, once, the first error of the user's backoff_strategy, if there is one."""
        if error is not None and not self._told_strategy:
            self._told_strategy = True
            log.error(
                "backoff_strategy of %s failed, its pauses are those of 'exponential'; told once",
                self._name,
                exc_info=error,
                extra=self._fields,
            )

    def answer_failed(
        self,
        connection: SubscribedConnection,
        message_id: str,
        error: ServerError,
        late: Late | None,
    ) -> None:
        """Report an answer that nsqd refused. ``late``: the handler's time, if it is known."""
        address = connection.nsqd_address
        tell = troubles().happened(address, (type(error).__name__, self._name))
        if tell is not None:
            log.warning(
                "%s: %s: %s; it comes again, or was delivered again; msg_timeout is %g s%s%s",
                self._name,
                address,
                error,
                connection.msg_timeout,
                "" if late is None else _time_of(late),
                more(tell),
                extra={**self._fields_of(connection), "message_id": message_id},
            )
        self.notify("answer_failed", address, message_id, error.code)

    def overdue(self, connection: SubscribedConnection, count: int) -> None:
        """Warn about ``count`` messages that a user's thread took and did not answer in time."""
        log.log(
            logging.DEBUG if self._told_overdue else logging.WARNING,
            "%s: %s from %s not answered within the timeout; nsqd delivers again what is not"
            " answered. Answer each message that you take (told once)",
            self._name,
            counted(count, "message"),
            connection.nsqd_address,
            extra=self._fields_of(connection),
        )
        self._told_overdue = True

    def anew(self, connection: SubscribedConnection, why: str) -> None:
        """Log that a connection is closed once nothing is in flight, and dialled again."""
        log.info(
            "%s %s: connecting to it anew",
            connection.nsqd_address,
            why,
            extra=self._fields_of(connection),
        )

    def _fields_of(self, connection: SubscribedConnection) -> dict[str, str]:
        return {**self._fields, "nsqd": connection.nsqd_address}
