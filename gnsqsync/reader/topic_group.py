"""Readers of all topics whose names match. They come and go with the lists of nsqlookupds.

Knows names of topics and the Readers made for them. The user's function makes the Readers.

Poll threads put each list into a queue. One thread takes the lists out, and makes and drops
Readers.

Surprise: a topic that is listed no more keeps its Reader while that has a connection. An nsqlookupd
that has just restarted lists nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from gnsqsync.addresses import UrlLike, http_urls
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.discovery.polling import Discovery
from gnsqsync.discovery.questions import topics_like
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.options import ConnectionOptions, check_duration
from gnsqsync.reader.advice import Told
from gnsqsync.reader.group import Group, Members, advise_once
from gnsqsync.reader.reader import Reader
from gnsqsync.runtime import Queue, Runtime, RuntimeLike, Task
from gnsqsync.runtime.at_exit import at_exit, not_at_exit

if TYPE_CHECKING:
    import requests

__all__ = ["TopicGroup"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# Seconds to wait at a stop for a question under way, which ends by its own timeout.
_JOIN_SECONDS = 5.0
# Seconds that handlers at work have at the end of the interpreter.
_EXIT_SECONDS = 0.5


class TopicGroup(Group):
    """A Reader for each topic whose name matches ``pattern``, as nsqlookupds list them.

    When no nsqlookupd lists a topic any more, its Reader stays while it has a connection, and is
    then stopped and forgotten. A Reader that was stopped elsewhere is forgotten, too. A topic that
    comes back gets a new Reader.

    Args:
        pattern: A regular expression, a str or compiled. It may match anywhere in the name of a
            topic, so use ``^`` and ``$`` for the whole name.
        make_reader: Called with a topic, returns a new Reader of it. It runs on a thread of the
            group, when the topic appears.
        lookupd_http_addresses: As in Reader: the nsqlookupds that list topics. The Readers have
            addresses of their own.
        max_in_flight: One limit of unanswered messages for all Readers, 1 or more. None means that
            each keeps its own.
        lookupd_poll_interval: Seconds; as in Reader.
        lookupd_poll_jitter: Part of the interval, 0 to 1; as in Reader.
        lookupd_authorization: As in Reader.
        lookupd_session: As in Reader.
        runtime: As in Reader.
        options: A ConnectionOptions, for the ``tls_`` files of https; None: the defaults.

    Raises:
        ConfigError: A value is not allowed. An error of ``make_reader`` stops all Readers, and
            ``join()`` raises it.

    Threads:
        Any thread or greenlet may call each method.
    """

    @checks_names
    def __init__(
        self,
        pattern: str | re.Pattern[str],
        make_reader: Callable[[str], Reader],
        *,
        lookupd_http_addresses: UrlLike,
        max_in_flight: int | None = None,
        lookupd_poll_interval: float = 15.0,
        lookupd_poll_jitter: float = 0.3,
        lookupd_authorization: str | None = None,
        lookupd_session: Callable[[], requests.Session] | None = None,
        runtime: RuntimeLike | None = None,
        options: ConnectionOptions | None = None,
    ) -> None:
        super().__init__(max_in_flight, runtime)
        self._pattern = _compiled(pattern)
        if not callable(make_reader):
            raise ConfigError(
                f"make_reader is {make_reader!r}; it must be a function from a topic to a Reader"
            )
        self._make_reader = make_reader
        self._lookups = Lookups(
            urls=http_urls(lookupd_http_addresses),
            poll_interval=lookupd_poll_interval,
            poll_jitter=lookupd_poll_jitter,
            authorization=lookupd_authorization,
            new_session=lookupd_session,
            options=ConnectionOptions() if options is None else options,
        )
        if not self._lookups.urls:
            raise ConfigError("a TopicGroup needs lookupd_http_addresses, at least one address")
        self._following: _Following | None = None
        self._stop_asked: float | None = None

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The Readers that run now, in the order in which their topics appeared."""
        members = self._members
        return () if members is None else members.readers

    @checks_names
    def stop(self, timeout: float = 30.0) -> None:
        """Ask every Reader to end, start no new one, and return at once. See Reader.stop.

        Args:
            timeout: Seconds in which handlers at work may finish.
        """
        check_duration("timeout", timeout)
        self._stop_asked = timeout
        following = self._following
        if following is not None:
            following.stop(timeout)
        super().stop(timeout)

    def _forgets(self) -> bool:
        return self._stop_asked is None

    def _begin(self, runtime: Runtime, members: Members) -> Sequence[Task]:
        self._following = following = _Following(
            self._pattern, self._make_reader, self._lookups, runtime, members
        )
        # A stop that came before the assignment has not reached the thread.
        if self._stop_asked is not None:
            following.stop(self._stop_asked)
        return (following.start(),)


class _Following:
    """Thread that makes Readers of the listed topics, and drops those of topics that are gone.

    Poll threads only fill ``_news``, so the tables belong to this thread alone. ``_granted`` holds
    the seconds of each stop, for a Reader that is started at the same moment.
    """

    def __init__(
        self,
        pattern: re.Pattern[str],
        make_reader: Callable[[str], Reader],
        lookups: Lookups,
        runtime: Runtime,
        members: Members,
    ) -> None:
        self._make_reader = make_reader
        self._members = members
        self._runtime = runtime
        self._granted: list[float] = []
        # Answers of nsqlookupds (source, topics); None at a stop.
        self._news: Queue = runtime.queue()
        self._listed: dict[Hashable, set[str]] = {}
        self._readers: dict[str, Reader] = {}
        # The warnings about options, which make_reader usually gives to each Reader alike.
        self._told = Told()
        self._task: Task | None = None
        self._discovery = Discovery(
            topics_like(pattern),
            lookups,
            lambda source, topics: self._news.put((source, topics)),
            lambda url, error: None,
            runtime,
        )

    def start(self) -> Task:
        at_exit(self.end_now)
        try:
            self._discovery.start()
            self._task = self._runtime.spawn("nsq-topics", self._run)
        except BaseException:  # no thread would end the discovery
            self._end()
            raise
        return self._task

    def stop(self, timeout: float) -> None:
        """End the thread. From any thread or a signal handler: takes no lock."""
        self._granted.append(timeout)
        self._news.put(None)

    def end_now(self) -> None:
        """End at the end of the interpreter, so that no Reader starts that nothing would stop."""
        self.stop(_EXIT_SECONDS)
        if self._task is not None:
            self._task.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while (news := self._news.get()) is not None:
                source, topics = news
                self._listed[source] = topics
                self._catch_up()
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self._members.fail(error)
        finally:
            self._end()

    def _end(self) -> None:
        not_at_exit(self.end_now)
        self._discovery.stop()
        self._discovery.join(_JOIN_SECONDS)

    def _catch_up(self) -> None:
        # An nsqlookupd that cannot be asked changes nothing: its last answer stands.
        listed = set().union(*self._listed.values())
        for topic, reader in list(self._readers.items()):
            # A Reader that was stopped elsewhere has no connections, either.
            if topic not in listed and not reader.stats().connections:
                log.info("no nsqlookupd lists topic %s any more", topic, extra={"topic": topic})
                del self._readers[topic]
                self._members.drop(reader)
        for topic in sorted(listed - self._readers.keys()):
            if self._granted:
                return
            self._readers[topic] = reader = self._made(topic)
            log.info("topic %s is listed and matches", topic, extra={"topic": topic})
            advise_once([reader], self._told)
            self._members.add([reader])
            # A stop during the start may not have seen this Reader.
            for timeout in self._granted:
                reader.stop(timeout)

    def _made(self, topic: str) -> Reader:
        reader = self._make_reader(topic)
        if not isinstance(reader, Reader) or reader.topic != topic:
            raise ConfigError(
                f"make_reader({topic!r}) returned {reader!r}; it must be a Reader of that topic"
            )
        return reader


def _compiled(pattern: object) -> re.Pattern[str]:
    try:
        found = re.compile(pattern)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise ConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(found.pattern, str):
        raise ConfigError(f"pattern {pattern!r} matches bytes; topics are str")
    compiled: re.Pattern[str] = found
    return compiled
