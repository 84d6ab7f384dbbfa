"""Readers as a program: signals, exit codes, several processes.

Only commands use this. Signal handlers are changed inside of a call or a ``with``, and restored at
its end. Does not know command lines, frameworks or handlers.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import FrameType

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.process.output import flush
from gnsqsync.process.signals import Requests, ending, handled, tell_terminal
from gnsqsync.reader import Reader
from gnsqsync.reader.group import ReaderGroup
from gnsqsync.runtime import choose
from gnsqsync.runtime.child_end import end_child, leave_to_parent
from gnsqsync.stats import StopResult, counted

__all__ = [
    "ESCALATION",
    "WORN",
    "Ending",
    "Place",
    "StopFlag",
    "StopSignals",
    "run_readers",
    "supervise",
]

log: logging.Logger = logging.getLogger("gnsqsync.supervisor")

# The signals for a supervised process, in order: stop, stop at once, kill.
ESCALATION = signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL
# Seconds after which a wait for a signal wakes up. If a signal comes just before the main thread
# goes to sleep, Python runs its handler only at the next wake-up.
_WAKE_SECONDS = 1.0
# Seconds after the handlers' time at which a process is killed.
_GRACE_SECONDS = 10.0
# Exit code of a process that must be replaced: EX_TEMPFAIL of sysexits.h.
WORN = 75
# Seconds after its start from which on the end of a process has other reasons than its start.
_SETTLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process: alone, or below a supervisor.

    ``number``: 0, 1, ... among its siblings. ``parent``: the process id of its supervisor, or None.
    The death of the supervisor stops the process.

    A supervised process ignores SIGINT, which a terminal sends to all processes, and waits for its
    supervisor's SIGTERM. SIGTERM and SIGHUP may also come from a service manager or a closed
    terminal, which send them to each process.
    """

    number: int = 0
    parent: int | None = None

    @property
    def force(self) -> signal.Signals | None:
        """Signal by which the supervisor forces the process. None if a second signal forces it."""
        return None if self.parent is None else signal.SIGQUIT

    @property
    def handled(self) -> tuple[signal.Signals, ...]:
        """The signals to handle. The forcing one, if any, comes first."""
        if self.parent is None:
            return ending()
        return signal.SIGQUIT, *(number for number in ending() if number != signal.SIGINT)

    @property
    def is_orphan(self) -> bool:
        return self.parent is not None and os.getppid() != self.parent


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of Readers. ``asked``: True if a signal, or the supervisor's death, ended them."""

    results: list[StopResult]
    asked: bool
    # True if another process must take the place of this one.
    worn: bool = False

    @property
    def exit_code(self) -> int:
        """WORN if ``worn``. 0 if asked to stop and every message was answered. Else 1."""
        if self.worn:
            return WORN
        return 0 if self.asked and all(result.clean for result in self.results) else 1

    def __str__(self) -> str:
        unanswered = sum(result.unanswered for result in self.results)
        running = sum(result.workers_running for result in self.results)
        if unanswered or running:
            messages, handlers = counted(unanswered, "message"), counted(running, "handler")
            return f"stopped with {messages} unanswered and {handlers} at work"
        return "stopped" if self.asked else "stopped without being asked"


class StopFlag:
    """A flag that a loop checks between its rounds. ``set`` may be the ``stop`` of StopSignals."""

    def __init__(self) -> None:
        runtime = choose(None)
        self._event = runtime.event()
        self._now = runtime.now

    def set(self, timeout: float = 0.0) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``. Return True if the flag is set."""
        deadline = self._now() + seconds
        while (left := deadline - self._now()) > 0:
            if self._event.wait(min(left, _WAKE_SECONDS)):
                return True
        return self._event.is_set()


class StopSignals:
    """A context manager: the first signal calls ``stop(timeout)``, the second ``stop(0)``.

    The third signal ends the process at once, with exit code 128 plus its number. SIGHUP counts
    only as a first signal. If ``place`` has a forcing signal, that one calls ``stop(0)``, and
    repetitions of other signals are ignored. ``stop`` runs in the signal handler, so it must only
    set a flag. On any thread but the main one, Python allows no signal handlers, and this does
    nothing. The earlier handlers are restored at the end.
    """

    def __init__(
        self, stop: Callable[[float], object], timeout: float, place: Place | None = None
    ) -> None:
        self._requests = Requests()
        self._stop = stop
        self._timeout = timeout
        self._place = place or Place()
        self._handlers = ExitStack()

    def __enter__(self) -> StopSignals:
        with suppress(ValueError):  # On another thread there are no signal handlers.
            # The supervisor's SIGTERM must not kill a process that is ending already.
            self._handlers.enter_context(
                handled(self._place.handled, self._handle, is_last=self._place.parent is not None)
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._handlers.close()

    @property
    def level(self) -> int:
        """The level of Requests; 0 before the first signal."""
        return self._requests.level

    def _handle(self, number: int, frame: FrameType | None) -> None:
        level = self._requests.add(number)
        if self._place.force is not None:
            # The supervisor has written to the terminal.
            if number == self._place.force:
                self._stop(0.0)
            elif level == 1:
                self._stop(self._timeout)
            return
        if level > 2:
            os._exit(128 + number)
        if level:
            if number != signal.SIGHUP:
                tell_terminal(level)
            self._stop(self._timeout if level == 1 else 0.0)


def run_readers(
    readers: Sequence[Reader],
    stop_timeout: float,
    place: Place,
    on_start: Callable[[], object],
    worn: Callable[[], bool],
) -> Ending:
    """Start Readers, wait for a signal, and stop them. Return how they ended.

    ``stop_timeout``: seconds for running handlers after the first signal. ``on_start`` is called
    after all Readers have started. ``worn`` is called each second and returns True if this process
    must be replaced. If a Reader ends by itself, the others are stopped and its error is raised.
    """
    group = ReaderGroup(readers)
    orphaned = is_worn = False
    with StopSignals(group.stop, stop_timeout, place) as signals:
        try:
            group.start(block=False)
            on_start()
            for reader in readers:
                while not _ended(reader):
                    if not orphaned and place.is_orphan:
                        orphaned = True
                        log.error("process %s is gone; stopping", place.parent)
                        group.stop(stop_timeout)
                    if not is_worn and not signals.level and worn():
                        is_worn = True
                        group.stop(stop_timeout)
        except BaseException:  # No other code would stop the Readers.
            group.stop(0.0)
            raise
        results = group.join()
    asked = signals.level > 0 or orphaned
    return Ending(results, asked=asked or is_worn, worn=is_worn and not asked)


def _ended(reader: Reader) -> bool:
    """Wait a second. Return True if the Reader has ended."""
    try:
        return reader.join(_WAKE_SECONDS) is not None
    except NSQError:
        return True  # The group has stopped the others, and raises the error.


def supervise(
    run: Callable[[Place], int],
    processes: int = 1,
    *,
    stop_timeout: float,
    place: Place | None = None,
    before_fork: Callable[[], object] | None = None,
) -> int:
    """Call ``run`` with its Place, in this process or in child processes. Return the exit code.

    One process calls ``run`` itself. Several are forked, so no thread or connection may have been
    started before. ``before_fork`` is called before each fork, to close what must not be shared. A
    child that a signal killed is replaced after a pause, and one that ends with WORN at once. A
    child that ends in another way ends all the others.
    The first signal that ends a program is passed on as SIGTERM, the second as SIGQUIT, which
    forces, and the third kills. Children that still run 10 seconds after ``stop_timeout`` are
    killed. An error of ``before_fork`` is raised after all children have ended.

    The code is 0 if a signal asked to stop and every child ended with 0, else 1.
    """
    place = place or Place()
    if processes == 1:
        code = run(place)
        # A single process has no supervisor here. Its service manager starts it again.
        return 0 if code == WORN else code
    return _Supervisor(run, processes, stop_timeout, place, before_fork).run()


@dataclass(slots=True)
class _Child:
    """A child process, including its replacements."""

    number: int
    delays: ReconnectDelays = field(
        default_factory=lambda: ReconnectDelays(initial=1.0, maximum=30.0, rng=random.Random())
    )
    pid: int | None = None
    # Time of its last start, or of the next one.
    at: float = 0.0


class _Supervisor:
    """The parent of several processes. Its signal handlers only put the number into a queue."""

    def __init__(
        self,
        run: Callable[[Place], int],
        processes: int,
        stop_timeout: float,
        place: Place,
        before_fork: Callable[[], object] | None,
    ) -> None:
        self._run = run
        self._stop_timeout = stop_timeout
        self._place = place
        self._before_fork = before_fork
        runtime = choose(None)
        self._now = runtime.now
        self._words = runtime.timed_queue()
        self._children = [_Child(number) for number in range(processes)]
        self._requests = Requests()
        # True if a child ended by itself, or badly after a signal: the exit code is 1.
        self._failed = False
        # Time at which children are killed; None until all are asked to end.
        self._kill_at: float | None = None

    def run(self) -> int:
        with ExitStack() as handlers:
            try:
                handlers.enter_context(handled((*self._place.handled, signal.SIGCHLD), self._note))
            except ValueError:
                raise ConfigError("several processes need the main thread") from None
            self._watch_to_the_end()
        return 0 if self._requests.level and not self._failed else 1

    def _watch_to_the_end(self) -> None:
        """Call ``_watch()``, and leave no child behind after any error."""
        try:
            self._watch()
        except BaseException as error:  # The children must end before the error is raised.
            if self._kill_at is None:
                log.error("stopping, as the supervisor failed: %r", error)
                self._end_all(signal.SIGTERM)
            self._watch()
            raise
        finally:
            for child in self._children:
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)

    def _watch(self) -> None:
        """Start and watch the children until all were asked to end and have ended."""
        while self._kill_at is None or any(child.pid for child in self._children):
            self._start_due()
            self._listen()
            self._reap()
            self._look_at_the_clock()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._words.put(number)

    def _start_due(self) -> None:
        for child in self._children:
            if self._kill_at is None and child.pid is None and child.at <= self._now():
                self._fork(child)

    def _fork(self, child: _Child) -> None:
        if self._before_fork is not None:
            self._before_fork()
        flush()
        child.at = self._now()
        parent = os.getpid()
        # The child inherits our handlers, so signals are blocked until it has its own.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._place.handled, signal.SIGTERM})
        try:
            child.pid = os.fork()
        except OSError as error:
            # The system may be out of processes for a while. The fork is tried again later.
            pause = child.delays.next()
            child.at = self._now() + pause
            log.error("no process can be started (%s); trying again in %.1f s", error, pause)
        if child.pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            return
        code = 1
        try:
            leave_to_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in {*self._place.handled} - {signal.SIGINT, signal.SIGQUIT}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            code = self._run(Place(child.number, parent))
        except BaseException:  # noqa: BLE001 - the child must not return into the parent's code
            traceback.print_exc()
        finally:
            # The end of the child has the same time as after a signal.
            end_child(code, self._stop_timeout + _GRACE_SECONDS)

    def _listen(self) -> None:
        """Wait for a signal, or until the next child must be started."""
        due = [child.at - self._now() for child in self._children if child.pid is None]
        seconds = _WAKE_SECONDS if self._kill_at is not None else min([_WAKE_SECONDS, *due])
        try:
            number = self._words.get(max(0.0, seconds))
        except TimeoutError:
            if self._place.is_orphan and not self._requests.level:
                self._ask(signal.SIGHUP)
        else:
            if number == self._place.force:
                self._end_all(signal.SIGQUIT)
            elif number != signal.SIGCHLD and not (self._requests.level and self._place.force):
                self._ask(number)

    def _ask(self, number: int) -> None:
        """Pass on a signal that asks this process to end."""
        level = self._requests.add(number)
        if not level:
            return
        if self._place.force is None and level < 3 and number != signal.SIGHUP:
            tell_terminal(level)
        self._end_all(ESCALATION[min(level, 3) - 1])

    def _end_all(self, number: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = self._now() + self._stop_timeout + _GRACE_SECONDS
        for child in self._children:
            if child.pid is not None:
                os.kill(child.pid, number)

    def _reap(self) -> None:
        for child in self._children:
            if child.pid is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            child.pid = None
            self._ended(child, pid, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, pid: int, code: int) -> None:
        if self._kill_at is not None:
            # A signal kills a child that has no handler yet. Such a child had begun no message.
            if code not in (0, WORN, -signal.SIGTERM, -signal.SIGHUP):
                self._failed = True
            return
        if code == WORN:
            # The child has printed the reason, and another one takes its place at once.
            child.delays.reset()
            child.at = self._now()
            log.info("process %d was replaced as asked", pid)
            return
        if code >= 0:
            log.error("process %d ended by itself with exit code %d; stopping", pid, code)
            self._failed = True
            self._end_all(signal.SIGTERM)
            return
        if self._now() - child.at > _SETTLED_SECONDS:
            child.delays.reset()
        pause = child.delays.next()
        child.at = self._now() + pause
        log.error(
            "process %d was killed by %s; another one takes its place in %.1f s",
            pid,
            signal.Signals(-code).name,
            pause,
        )

    def _look_at_the_clock(self) -> None:
        if self._kill_at is not None and self._now() >= self._kill_at:
            self._end_all(signal.SIGKILL)
