"""The dead letters of a topic, taken one after the other: each stays, is sent back, or is purged.

Knows Readers and Writers, one nsqd after the other. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from gnsqsync.addresses import AddressLike, UrlLike, http_urls, parse_addresses
from gnsqsync.dead_letters.audit import Audit, user_of_this_process
from gnsqsync.dead_letters.letter import DeadLetter, Filter
from gnsqsync.dead_letters.look import Look
from gnsqsync.dead_letters.places import CHANNEL, Places
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import (
    BadMessage,
    BadTopic,
    ClosedError,
    ConfigError,
    ConnectionLost,
    NSQError,
    Refused,
)
from gnsqsync.keywords import checks_names
from gnsqsync.options import (
    ConnectionOptionKeywords,
    ConnectionOptions,
    check_channel,
    check_duration,
    check_int,
    check_topic,
    split_connection_options,
)
from gnsqsync.runtime import RuntimeLike, choose
from gnsqsync.writer.writer import Writer

if TYPE_CHECKING:
    import requests

__all__ = ["DeadLetters", "Tally"]

Told = Callable[[DeadLetter, NSQError | None], object]

# Largest number of messages on their way, besides those that are held.
_WINDOW = 500
# With a rate, the messages on their way last for this many seconds. nsqd takes messages back after
# 15 minutes.
_WINDOW_SECONDS = 30.0
# Seconds without a message after which the received messages are passed on.
_GATHER = 0.05
# Bytes: the Writer's limit for letters. nsqd has its own limit, and takes what it has sent.
_MOST_OF_ANY_NSQD = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of ``requeue_all()`` or ``purge_all()``.

    Attributes:
        looked_at: Number of letters that came.
        done: Number of letters that were sent back or purged.
        failed: Number of letters that could not be; they stay.
        error: The error that ended the call early, or None.
    """

    looked_at: int
    done: int
    failed: int
    error: NSQError | None


class DeadLetters:
    """The dead letters of a topic, as a context manager and an iterable: each letter once.

    nsqd cannot be browsed, so letters are received and held. At the end of the ``with`` all letters
    are given back that were neither sent back nor purged. Each look counts as a delivery of the
    letter. If the process dies, nsqd delivers the letters again after its ``--msg-timeout``.

    The iteration ends after the number of letters that waited at its begin, after ``limit``
    letters, or after ``patience`` seconds without a letter.

    Attributes:
        topic: The topic of the dead letters.
        channel: The channel from which they are taken.
        limit: Largest number of letters to look at.
        looked_at: Number of letters that came.
        waiting: Number of letters that waited when the iteration began; None if an nsqd did not
            tell.
        elsewhere: Number of letters that wait in other channels of the topic, by channel.
        problems: A sentence for each nsqd that could not be looked at, or not to the end.

    Args:
        topic: The topic of the dead letters, such as ``orders.dead``.
        channel: The channel from which to take them. If the topic has no channel, nsqd makes this
            one and moves the waiting letters there. ``send-back``, which nsqadmin used to make, is
            found as ``dead_letters``. Default: "dead_letters".
        nsqd_tcp_addresses: As for the Reader. The port after each is asked for the number of
            letters.
        nsqd_http_addresses: HTTP addresses of nsqds, which tell their TCP ports.
        lookupd_http_addresses: As for the Reader. One address of the three kinds is needed.
        limit: Largest number of letters to look at, 1 or more. Default: 1000.
        patience: Seconds to wait for another letter, 0.1 or more. Default: 2.
        by: The user that looks, for the log: each purge is a WARNING there, each requeue INFO.
            Default: the user of this process.
        lookupd_authorization: As for the Reader.
        lookupd_session: As for the Reader.
        runtime: As for the Reader.
        options: As for the Reader.
        **connection_options: Fields of ConnectionOptions.

    Raises:
        ConfigError: A value is not allowed, or no address is given.

    Threads:
        One thread at a time; ``stop()`` from any thread and from signal handlers.
    """

    @checks_names
    def __init__(
        self,
        topic: str,
        channel: str = CHANNEL,
        *,
        nsqd_tcp_addresses: AddressLike = (),
        nsqd_http_addresses: UrlLike = (),
        lookupd_http_addresses: UrlLike = (),
        limit: int = 1000,
        patience: float = 2.0,
        by: str | None = None,
        lookupd_authorization: str | None = None,
        lookupd_session: Callable[[], requests.Session] | None = None,
        runtime: RuntimeLike | None = None,
        options: ConnectionOptions | None = None,
        **connection_options: Unpack[ConnectionOptionKeywords],
    ) -> None:
        self.topic: str = check_topic(topic)
        self.channel: str = check_channel(channel)
        if channel.endswith("#ephemeral"):
            raise ConfigError(
                f"channel {channel!r} ends with its last consumer, and its letters with it; take"
                " them from another one"
            )
        self.limit: int = check_int("limit", limit, 1)
        self.looked_at: int = 0
        self.waiting: int | None = None
        self.elsewhere: dict[str, int] = {}
        self.problems: list[str] = []
        self._patience = check_duration("patience", patience, 0.1)
        self._nsqds = parse_addresses(nsqd_tcp_addresses)
        self._http = http_urls(nsqd_http_addresses, 4151)
        self._options = split_connection_options(options, connection_options, DeadLetters)
        if self._options.uses_tls:
            self._options.ssl_context()
        self._lookups = Lookups(
            urls=http_urls(lookupd_http_addresses),
            poll_interval=60.0,
            poll_jitter=0.0,
            authorization=lookupd_authorization,
            new_session=lookupd_session,
            options=self._options,
        )
        if not self._nsqds and not self._http and not self._lookups.urls:
            raise ConfigError(
                "DeadLetters needs nsqd_tcp_addresses, nsqd_http_addresses or"
                " lookupd_http_addresses, at least one address"
            )
        self._runtime = runtime
        self._audit = Audit(topic, by or user_of_this_process())
        self._writers: dict[str, Writer] = {}
        self._look: Look | None = None
        self._is_stopped = False

    def __enter__(self) -> DeadLetters:
        self.looked_at = 0
        self._look = Look(
            self.topic,
            self.limit,
            self._patience,
            self._options,
            choose(self._runtime),
        )
        return self

    def __exit__(self, *raised: object) -> None:
        look, self._look = self._look, None
        self._audit.write()
        try:
            if look is not None:
                look.close()
        finally:
            while self._writers:
                self._writers.popitem()[1].close()

    def stop(self) -> None:
        """End the iteration after the current letter.

        Threads:
            Any thread and any signal handler may call it.
        """
        self._is_stopped = True
        look = self._look
        if look is not None:
            look.stop()

    @property
    def is_stopped(self) -> bool:
        """True once ``stop()`` was called."""
        return self._is_stopped

    def __iter__(self) -> Iterator[DeadLetter]:
        """Receive the letters, each once.

        Raises:
            ClosedError: Outside of ``with``.
        """
        return self._letters(_WINDOW)

    def _letters(self, window: int) -> Iterator[DeadLetter]:
        look = self._entered()
        if self._is_stopped:
            look.stop()
        places = Places(self.topic, self.channel, self._lookups, look.runtime)
        found = places.find(self._nsqds, self._http)
        waiting = [place.waiting for place in found]
        self.waiting = None if None in waiting else sum(filter(None, waiting))
        look.problems = self.problems = places.problems
        self.elsewhere = places.elsewhere
        for letter in look.letters(found, window):
            self.looked_at = look.looked_at
            yield letter

    def _entered(self) -> Look:
        if self._look is None:
            raise ClosedError("DeadLetters is used inside of 'with', whose end gives letters back")
        return self._look

    # -- acts ----------------------------------------------------------------------------------

    @checks_names
    def requeue(
        self, letter: DeadLetter, *, to: str | None = None, writer: Writer | None = None
    ) -> None:
        """Publish a letter again, and finish it when nsqd has said OK.

        The message has the headers that it had before it died, and ``deadcount``. A message without
        headers is published as its body only. All channels of the topic get the message, even those
        that have handled it.

        Args:
            letter: A letter that this object gave, in the same ``with``.
            to: The topic. Default: the topic from which the message came.
            writer: A Writer without ``headers=True``. Default: the letter goes to its own nsqd.

        Raises:
            ConfigError: The topic or the Writer is not allowed, or the letter names no topic.
            ConnectionLost: nsqd has taken the letter back; the text says if it is published.
            PublishError: The letter stays; after OutcomeUnknown it may be published, too.
            ClosedError: The letter is not held here: it was answered, or the ``with`` is over.
        """
        topic = letter.topic if to is None else check_topic(to)
        if not topic:
            raise ConfigError("the letter does not say which topic it came from; name one")
        if topic == self.topic:
            raise ConfigError(f"{topic!r} is the topic of the dead letters; name another one")
        if writer is not None and writer.encoder.has_headers:
            raise ConfigError("writer has headers=True: it would wrap a letter twice")
        look = self._entered()
        message = look.mine(letter)
        writer = writer or self._writer(letter.nsqd)
        writer.publish(topic, letter.as_published())
        self._audit.note(letter, topic)
        look.finish(message, f"is published to {topic}")

    def purge(self, letter: DeadLetter) -> None:
        """Finish a letter, so that nobody gets it again.

        Args:
            letter: A letter that this object gave, in the same ``with``.

        Raises:
            ConnectionLost: nsqd has taken the letter back.
            ClosedError: The letter is not held here: it was answered, or the ``with`` is over.
        """
        look = self._entered()
        look.finish(look.mine(letter), "was to be purged")
        self._audit.note(letter)

    @checks_names
    def requeue_all(
        self,
        where: Filter | None = None,
        *,
        to: str | None = None,
        rate: float | None = None,
        writer: Writer | None = None,
        told: Told | None = None,
    ) -> Tally:
        """Send back each letter that matches, as they come.

        If a letter fails by its own fault, it stays, and other letters go on. Any other error, such
        as an nsqd that takes no publish, ends the call.

        Args:
            where: The letters that are meant. Default: all.
            to: As for ``requeue()``.
            rate: Upper bound of letters a second. Default: no limit.
            writer: As for ``requeue()``.
            told: Called with each letter and its error, or None. Default: not called.

        Returns:
            The numbers of letters.

        Raises:
            ConfigError: The topic or the rate is not allowed.
            ClosedError: Outside of ``with``.
        """
        if to is not None:
            check_topic(to)
        if rate is not None:
            check_duration("rate", rate, 0.001, finite=True)

        def act(letter: DeadLetter) -> None:
            self.requeue(letter, to=to, writer=writer)

        return self._all(where, act, rate, told)

    @checks_names
    def purge_all(self, where: Filter | None = None, *, told: Told | None = None) -> Tally:
        """Purge each letter that matches, as they come.

        Args:
            where: The letters that are meant. Default: all.
            told: Called with each letter and its error, or None. Default: not called.

        Returns:
            The numbers of letters.

        Raises:
            ClosedError: Outside of ``with``.
        """
        return self._all(where, self.purge, None, told)

    def _all(
        self,
        where: Filter | None,
        act: Callable[[DeadLetter], None],
        rate: float | None,
        told: Told | None,
    ) -> Tally:
        wanted = where or Filter()
        before = self.looked_at
        done = failed = 0
        ended_by: NSQError | None = None
        look = self._entered()
        window = _WINDOW if rate is None else max(1, min(_WINDOW, int(rate * _WINDOW_SECONDS)))
        for letter in self._letters(window):
            if not wanted.matches(letter):
                continue
            if rate is not None and (done or failed) and look.is_stopped_in(1 / rate):
                break
            error: NSQError | None = None
            try:
                act(letter)
                done += 1
            except NSQError as wrong:
                error = wrong
                failed += 1
            if told is not None:
                told(letter, error)
            if error is not None and not _is_of_the_letter(error):
                ended_by = error
                break
        return Tally(self.looked_at - before, done, failed, ended_by)

    def _writer(self, nsqd: str) -> Writer:
        if nsqd not in self._writers:
            self._writers[nsqd] = Writer(
                nsqd,
                max_msg_size=_MOST_OF_ANY_NSQD,
                runtime=self._entered().runtime,
                options=self._options,
            )
        return self._writers[nsqd]


def _is_of_the_letter(error: NSQError) -> bool:
    """Return True if the error concerns this letter only, so that the next one may be tried."""
    if isinstance(error, Refused):
        return isinstance(error.error, (BadMessage, BadTopic))
    return isinstance(error, (ConfigError, ConnectionLost))
