"""Options of a Reader about flow rather than the connection, and a Reader's whole setup.

Knows the range of each option, and which options contradict each other. Starts nothing.

``ReaderOptions`` has the options about flow, and ``ReaderSetup`` adds names, servers, handler and
Observers: all that a start needs. ``ReaderOptionKeywords`` repeats the names for type checkers.

Surprise: a group copies the setups of its Readers with other values, such as a shared timer, before
it starts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from gnsqsync.addresses import Address
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import ConfigError
from gnsqsync.options import (
    ConnectionOptionKeywords,
    ConnectionOptions,
    check_duration,
    check_handler,
    check_int,
    check_limits,
    check_topic,
    handler_name,
    limited,
)
from gnsqsync.reader.once import by_header
from gnsqsync.reader.verdicts import BackoffOption, Exceptions, Verdicts

if TYPE_CHECKING:
    import requests

    from gnsqsync.message import Message
    from gnsqsync.middleware import Middleware
    from gnsqsync.observer import Observer
    from gnsqsync.policy.latency import JointRate
    from gnsqsync.reader.claims import Claim
    from gnsqsync.reader.lanes import KeyOfLane
    from gnsqsync.runtime import RuntimeLike
    from gnsqsync.runtime.timer import Timer

__all__ = [
    "BackoffStrategy",
    "Latency",
    "OnExpired",
    "OnGivingUp",
    "ReaderOptionKeywords",
    "ReaderOptions",
    "ReaderSetup",
]

BackoffStrategy: TypeAlias = Literal["exponential", "full_jitter"] | Callable[[int], float]
OnExpired: TypeAlias = Callable[["Message"], object] | Literal["dead_letter", "discard"]
Latency: TypeAlias = Literal["adaptive", "throughput"]
OnGivingUp: TypeAlias = Callable[["Message", "BaseException | None"], object] | Literal["discard"]


class ReaderOptionKeywords(ConnectionOptionKeywords, total=False):
    """Keywords of Reader without those that name servers, for functions that pass them on.

    Defaults are those of ReaderOptions; ``observer``, ``runtime`` and ``options`` are None.
    """

    max_in_flight: int | None
    concurrency: int
    max_attempts: int
    max_deliveries: int
    requeue_delay: float
    max_requeue_delay: float
    max_backoff_duration: float | None
    backoff_multiplier: float
    backoff_strategy: BackoffStrategy
    backoff_on_fin_failed: bool
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_authorization: str | None
    lookupd_session: Callable[[], requests.Session] | None
    low_rdy_idle_timeout: float
    low_rdy_timeout: float
    rdy_redistribute_interval: float
    latency: Latency
    auto_touch: bool
    on_giving_up: OnGivingUp | None
    dead_letter_topic: str | None
    retry_on: Exceptions | None
    reject_on: Exceptions
    discard_on: Exceptions
    backoff: BackoffOption
    time_limit: float | None
    max_age: float | None
    on_expired: OnExpired | None
    rate_limit: float | None
    rate_burst: int | None
    lanes: KeyOfLane | None
    headers: bool
    shared: bool
    middleware: Middleware | Sequence[Middleware]
    observer: Observer | Sequence[Observer] | None
    runtime: RuntimeLike | None
    options: ConnectionOptions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Options that ``Reader`` documents. Raises ConfigError for a value out of range."""

    max_in_flight: int | None = limited(None, check_int, 0)
    concurrency: int = limited(1, check_int, 1)
    max_attempts: int = limited(5, check_int, 0, 65535)
    max_deliveries: int = limited(0, check_int, 0, 65535)
    requeue_delay: float = limited(90.0, check_duration, 0, 3600)
    max_requeue_delay: float = limited(900.0, check_duration, 0, 3600)
    max_backoff_duration: float | None = limited(None, check_duration, 0, 3600)
    backoff_multiplier: float = limited(1.0, check_duration, 0.001, 3600)
    backoff_strategy: BackoffStrategy = "exponential"
    # True if a FIN that nsqd refuses counts as a failure for the backoff.
    backoff_on_fin_failed: bool = False
    low_rdy_idle_timeout: float = limited(10.0, check_duration, 0.1, 300)
    low_rdy_timeout: float = limited(30.0, check_duration, 0.1, 300)
    rdy_redistribute_interval: float = limited(5.0, check_duration, 0.01, 60)
    latency: Latency = "adaptive"
    # True if messages are touched while their handler runs.
    auto_touch: bool = False
    on_giving_up: OnGivingUp | None = None
    dead_letter_topic: str | None = None
    retry_on: Exceptions | None = None
    reject_on: Exceptions = ()
    discard_on: Exceptions = ()
    # True if outages pause the Reader, False if nothing does. ``Reader`` lists the other values.
    backoff: BackoffOption = True
    time_limit: float | None = limited(None, check_duration, 0.01, 86400)
    max_age: float | None = limited(None, check_duration, 0.001, finite=True)
    on_expired: OnExpired | None = None
    rate_limit: float | None = None
    rate_burst: int | None = limited(None, check_int, 1)
    lanes: KeyOfLane | None = None
    # True if bodies may be envelopes, which are opened.
    headers: bool = False

    def __post_init__(self) -> None:
        check_limits(self)
        if not callable(self.backoff_strategy) and self.backoff_strategy not in (
            "exponential",
            "full_jitter",
        ):
            raise ConfigError(
                f"backoff_strategy is {self.backoff_strategy!r}; it must be 'exponential',"
                " 'full_jitter' or a callable from level to seconds"
            )
        if self.latency not in ("adaptive", "throughput"):
            raise ConfigError(f"latency is {self.latency!r}; it must be 'adaptive' or 'throughput'")
        for name in ("auto_touch", "backoff_on_fin_failed", "headers"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        if self.dead_letter_topic is not None:
            check_topic(self.dead_letter_topic)
        self._check_giving_up()
        self._check_max_age()
        self._check_rate()
        if self.lanes is not None:
            check_handler("lanes", self.lanes)
        self.verdicts()

    def _check_max_age(self) -> None:
        hook = self.on_expired
        if self.max_age is None:
            if hook is not None:
                raise ConfigError(f"on_expired is {hook!r} without max_age; give both")
            return
        if hook == "dead_letter":
            if self.dead_letter_topic is None:
                raise ConfigError("on_expired is 'dead_letter'; give dead_letter_topic, too")
        elif hook is None or (isinstance(hook, str) and hook != "discard"):
            raise ConfigError(
                f"max_age is {self.max_age:g} and on_expired is {hook!r}; it must be"
                " 'dead_letter', 'discard' or a callable that takes a message"
            )
        elif hook != "discard":
            check_handler("on_expired", hook)

    def _check_rate(self) -> None:
        rate, burst = self.rate_limit, self.rate_burst
        if rate is None:
            if burst is not None:
                raise ConfigError(f"rate_burst is {burst!r} without rate_limit; give both")
            return
        is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not (is_number and 0.001 <= rate <= 1_000_000):
            raise ConfigError(
                f"rate_limit is {rate!r}; it must be messages a second, 0.001 to 1,000,000"
            )

    @property
    def burst(self) -> int:
        """Messages that the rate limit allows at once; by default, those of a second."""
        return self.rate_burst or max(1, int(self.rate_limit or 0))

    def verdicts(self) -> Verdicts:
        """Return the rules for exceptions of the handler."""
        return Verdicts(self.retry_on, self.reject_on, self.discard_on, self.backoff)

    def _check_giving_up(self) -> None:
        hook = self.on_giving_up
        if hook == "discard":
            if self.dead_letter_topic is not None:
                raise ConfigError(
                    f"dead_letter_topic is {self.dead_letter_topic!r} and on_giving_up is"
                    " 'discard'; give one of them"
                )
        elif isinstance(hook, str):
            raise ConfigError(
                f"on_giving_up is {hook!r}; it must be 'discard' or a callable that takes a"
                " message and the exception"
            )
        elif hook is not None:
            check_handler("on_giving_up", hook, "the message", "the exception or None")
        if self.max_deliveries and not self.gives_up:
            raise ConfigError(
                f"max_deliveries is {self.max_deliveries}; it needs dead_letter_topic or"
                " on_giving_up, for the messages that came more often"
            )

    @property
    def gives_up(self) -> bool:
        """True if a message that is given up is finished; else it waits in nsqd."""
        return self.on_giving_up is not None or self.dead_letter_topic is not None

    @property
    def initial_max_in_flight(self) -> int:
        """``max_in_flight`` at the start: the option, or one message for each worker."""
        return self.concurrency if self.max_in_flight is None else self.max_in_flight


# Names of the options of a Reader that are no options of a connection.
FLOW_OPTIONS: tuple[str, ...] = tuple(one.name for one in fields(ReaderOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSetup:
    """The checked options of a Reader, which are all that its start needs."""

    topic: str
    channel: str
    handler: Callable[[Message], object] | None
    nsqds: tuple[Address, ...]
    lookups: Lookups
    flow: ReaderOptions
    options: ConnectionOptions
    observers: tuple[Observer, ...]
    runtime: RuntimeLike | None
    middleware: tuple[Middleware, ...] = ()
    # True if other Readers of the process may take messages of the channel, too.
    shared: bool = False
    # Set by a group, whose Readers share one rate and one timer.
    together: JointRate | None = None
    timer: Timer | None = None
    # Called when a message is answered while the group has lent its slot for one message.
    on_turn_used: Callable[[], None] | None = None
    # True if the warnings about these options were logged, by this process or its parent.
    is_advised: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.shared, bool):
            raise ConfigError(f"shared is {self.shared!r}; it must be True or False")
        if by_header(self.handler) and not self.flow.headers:
            raise ConfigError(
                f"{self.handler_name} handles a message once by its header 'key', and headers is"
                " False, so every message would be rejected; give headers=True to the Reader and to"
                " the Writers, or give once a function that returns the key of a message"
            )

    @property
    def claim(self) -> Claim:
        """Claim on the channel, to compare with claims of the process's other Readers."""
        # Imported here: only groups and frameworks compare claims.
        from gnsqsync.reader.claims import Claim, servers_of

        return Claim(
            topic=self.topic,
            channel=self.channel,
            where=self.handler_name or "a Reader without a handler",
            handler=self.handler,
            servers=servers_of(self.nsqds, self.lookups.urls),
            shared=self.shared,
            dead_letter_topic=self.flow.dead_letter_topic,
        )

    @property
    def name(self) -> str:
        """Name in logs and of threads."""
        return f"{self.topic}/{self.channel}"

    @property
    def handler_name(self) -> str:
        """Name in logs; "" without a handler."""
        return "" if self.handler is None else handler_name(self.handler)

    @property
    def log_fields(self) -> dict[str, str]:
        """The ``extra`` of log lines."""
        return {"topic": self.topic, "channel": self.channel}

    def fields_of(self, message: Message) -> dict[str, object]:
        """Return the ``extra`` of a log line about this message."""
        return {
            **self.log_fields,
            "message_id": message.id,
            "attempts": message.attempts,
            "nsqd": message.nsqd_address,
        }
