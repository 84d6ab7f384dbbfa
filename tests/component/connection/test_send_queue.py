"""The combining send over a stream whose kernel takes what the test allows, and then breaks."""

from __future__ import annotations

import errno
import threading
from collections import deque
from typing import Any

import pytest

from gnsqsync.connection.answer_queue import AnswerQueue
from gnsqsync.connection.publish_queue import PublishQueue
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.errors import ConnectionLost, NotSent, OutcomeUnknown
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import choose

FIRST, SECOND, THIRD = b"PUB t\n\0\0\0\1a", b"PUB t\n\0\0\0\2bb", b"PUB t\n\0\0\0\3ccc"
STALL = 30.0


class Kernel:
    """A stream, and the clock: takes ``room`` bytes, then none, or breaks if ``breaks``."""

    def __init__(self, room: float = float("inf"), *, breaks: bool = False) -> None:
        self.room = room
        self.breaks = breaks
        self.is_clear = True
        self.taken = b""
        self.segments: list[bytes] = []
        self.is_shut = self.is_closed = self.has_eof = False
        self.time = 100.0
        # How long a sender may wait until it runs again.
        self.wait_to_run = 0.0
        self.on_send: Any = None
        self.on_wait: Any = None

    def longest_wait_to_run(self) -> float:
        return self.wait_to_run

    # The stream.

    def send_some(self, data: bytes | memoryview) -> int:
        if self.on_send is not None:
            hook, self.on_send = self.on_send, None
            hook()
        if self.is_shut or (not self.room and self.breaks):
            raise BrokenPipeError("broken")
        took = bytes(data[: int(min(self.room, len(data)))])
        self.room -= len(took)
        self.taken += took
        if took:
            self.segments.append(took)
        return len(took)

    def peer_has_ended(self) -> bool:
        return self.has_eof

    def wait_writable(self, timeout: float) -> bool:
        self.time += timeout
        if self.on_wait is not None:
            self.on_wait()
        return self.room > 0

    def encode(self, data: bytes) -> bytes:
        return b"<" + data + b">"

    def shutdown(self) -> None:
        self.is_shut = True

    def close(self) -> None:
        self.is_closed = True

    # The runtime.

    def now(self) -> float:
        return self.time

    def lock(self) -> Any:
        return threading.Lock()


def publishes_on(kernel: Kernel) -> PublishQueue:
    return PublishQueue(
        kernel,  # type: ignore[arg-type]
        kernel,  # type: ignore[arg-type]
        stall_timeout=STALL,
    )


def answers_on(kernel: Kernel, level: RdyLevel) -> AnswerQueue:
    return AnswerQueue(
        kernel,  # type: ignore[arg-type]
        kernel,  # type: ignore[arg-type]
        level=level,
        in_flight=lambda: 0,
        stall_timeout=STALL,
    )


def slot(data: bytes) -> PublishSlot:
    return PublishSlot(data, choose().latch())


def outcome(slot: PublishSlot) -> str:
    assert slot.wait(0), "no outcome"
    return "OK" if slot.error is None else type(slot.error).__name__


def outcomes_of_a_cut(room: int, answered: int, *, together: bool, clear: bool = True) -> list[str]:
    """Three publishes of which the kernel takes ``room`` bytes and nsqd answers ``answered``."""
    kernel = Kernel(room, breaks=True)
    kernel.is_clear = clear
    send_queue = publishes_on(kernel)
    slots = [slot(FIRST), slot(SECOND), slot(THIRD)]
    if together:
        send_queue.slots.extend(slots[:2])
        begin_with = 2
    else:
        begin_with = 0
    for each in slots[begin_with:]:
        if not send_queue.submit(each, 1.0):
            # Its publisher has it back, and tries elsewhere.
            each.fail(NotSent("taken back"))
    for _ in range(answered):
        send_queue.pending.popleft().succeed()
    send_queue.close(ConnectionLost("reset"))
    assert kernel.is_closed
    assert not send_queue.pending
    assert not send_queue.slots
    return [outcome(each) for each in slots]


@pytest.mark.parametrize("together", [True, False], ids=["one send", "a send each"])
def test_a_cut_at_every_byte(together: bool) -> None:
    """nsqd has a message only if it got all of it, and then nobody knows before its OK."""
    ends = [len(FIRST), len(FIRST + SECOND), len(FIRST + SECOND + THIRD)]
    for room in range(ends[-1] + 1):
        whole = sum(end <= room for end in ends)
        for answered in range(whole + 1):
            expected = (
                ["OK"] * answered
                + ["OutcomeUnknown"] * (whole - answered)
                + ["NotSent"] * (3 - whole)
            )
            assert outcomes_of_a_cut(room, answered, together=together) == expected, room


def test_behind_a_layer_no_border_is_claimed() -> None:
    """What part of a compressed segment makes a whole command is not known."""
    size = len(FIRST + SECOND + THIRD) + 2
    for room in range(1, size):
        cut = outcomes_of_a_cut(room, 0, together=True, clear=False)
        assert cut == ["OutcomeUnknown"] * 3, room


class TakenAtALook(deque[PublishSlot]):
    """Publishes of which another sender takes one whenever somebody looks whether there are any."""

    def __bool__(self) -> bool:
        there_was_one = len(self) > 0
        if there_was_one:
            self.popleft()
        return there_was_one


def test_a_queue_that_another_empties_is_not_written_without_the_lock() -> None:
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    send_queue.slots = TakenAtALook([slot(FIRST)])
    with send_queue._lock:  # another sender is writing
        send_queue.send(slot(SECOND), kernel.time)
        assert kernel.taken == b""
        assert send_queue._lock.locked()


@pytest.mark.parametrize("clear", [True, False], ids=["clear", "behind a layer"])
@pytest.mark.parametrize("breaks", [True, False], ids=["the kernel says it", "it is asked"])
def test_behind_the_end_nothing_is_written_and_nothing_in_doubt(clear: bool, breaks: bool) -> None:
    kernel = Kernel()
    kernel.is_clear = clear
    send_queue = publishes_on(kernel)
    early, late, later = slot(FIRST), slot(SECOND), slot(THIRD)
    assert send_queue.submit(early, 0.0)
    taken = kernel.taken
    kernel.time += 0.001
    if breaks:
        kernel.room, kernel.breaks = 0, True
    else:
        kernel.has_eof = True
    assert not send_queue.send(late, send_queue._now())
    # It waits where its publisher can take it back.
    assert list(send_queue.pending) == [early]
    assert list(send_queue.slots) == [late]
    assert not send_queue.submit(later, 0.0)
    send_queue.close(ConnectionLost("ended"))
    assert outcome(early) == "OutcomeUnknown"
    assert outcome(late) == "NotSent"
    assert not later.done
    assert kernel.taken == taken


def test_the_kernel_is_asked_for_the_end_now_and_then_only() -> None:
    """It is a system call: what it said holds for 1 ms."""
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    asked = []
    send_queue._peer_has_ended = lambda: bool(asked.append(kernel.time))
    for _ in range(10):
        send_queue.send(slot(FIRST), send_queue._now())
        kernel.time += 0.0005
    assert len(asked) <= 5
    kernel.time += 0.0011
    send_queue.send(slot(FIRST), send_queue._now())
    assert asked[-1] == kernel.time


def test_the_rest_of_what_was_begun_is_not_written_behind_the_end() -> None:
    kernel = Kernel(len(FIRST) + 1)
    send_queue = publishes_on(kernel)
    whole, torn, late = slot(FIRST), slot(SECOND), slot(THIRD)
    send_queue.slots.extend([whole, torn, late])
    send_queue.flush()
    kernel.has_eof, kernel.room = True, 100
    kernel.time += 0.002
    send_queue.flush(1.0)
    assert kernel.taken == (FIRST + SECOND)[: len(FIRST) + 1]
    send_queue.close(ConnectionLost("ended"))
    assert [outcome(each) for each in (whole, torn, late)] == [
        "OutcomeUnknown",
        "NotSent",
        "NotSent",
    ]


def test_an_answer_that_came_before_its_publish_was_sent_counts() -> None:
    kernel = Kernel()
    kernel.has_eof = True
    send_queue = publishes_on(kernel)
    first, second = slot(FIRST), slot(SECOND)

    def lie() -> bool:
        send_queue.pending.popleft().succeed()
        return True

    send_queue._peer_has_ended = lie
    send_queue.slots.extend([first, second])
    send_queue.flush()
    assert outcome(first) == "OK"
    assert list(send_queue.slots) == [second]
    assert not send_queue.pending


def test_a_kill_during_a_write_leaves_the_batch_in_doubt() -> None:
    """Whether the kernel had it before the exception came is not known."""

    class Killed(BaseException):
        """As KeyboardInterrupt."""

    def kill() -> None:
        raise Killed

    kernel = Kernel()
    kernel.on_send = kill
    send_queue = publishes_on(kernel)
    own, other = slot(FIRST), slot(SECOND)
    send_queue.slots.append(other)
    with pytest.raises(Killed):
        send_queue.send(own, send_queue._now())
    send_queue.close(ConnectionLost("killed"))
    assert [outcome(own), outcome(other)] == ["OutcomeUnknown"] * 2


def test_after_a_fatal_error_nothing_behind_it_was_read() -> None:
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    slots = [slot(FIRST), slot(SECOND)]
    for each in slots:
        send_queue.submit(each, 1.0)
    send_queue.peer_stopped = True
    send_queue.close(ConnectionLost("E_BAD_TOPIC"))
    assert [outcome(each) for each in slots] == ["NotSent", "NotSent"]
    assert "before it read this: E_BAD_TOPIC" in str(slots[0].error)


def test_a_publish_on_a_closed_connection() -> None:
    send_queue = publishes_on(Kernel())
    send_queue.close(ConnectionLost("gone"))
    late = slot(FIRST)
    assert not send_queue.submit(late, 1.0)
    assert not late.done
    send_queue.slots.append(late)
    send_queue.fail_unsent(late)
    assert outcome(late) == "NotSent"
    assert not send_queue.slots


def test_a_sender_leaves_a_taken_lock_and_the_holder_looks_again() -> None:
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    first, second = slot(FIRST), slot(SECOND)
    # As another thread would, in the middle of the first one's send.
    kernel.on_send = lambda: send_queue.submit(second, 1.0)
    send_queue.submit(first, 1.0)
    assert kernel.segments == [FIRST, SECOND]
    assert list(send_queue.pending) == [first, second]


def test_a_rest_that_another_one_leaves_just_before_the_lock_goes_first() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    lock = send_queue._lock

    class Late:
        release, locked = lock.release, lock.locked

        def acquire(self, *how: Any) -> bool:
            send_queue._lock = lock
            send_queue.submit(slot(FIRST), 0.0)
            return lock.acquire(*how)

    send_queue._lock = Late()  # type: ignore[assignment]
    assert not send_queue.send(slot(SECOND), send_queue._now())
    assert kernel.taken == FIRST[:4]
    kernel.room = 1000
    send_queue.flush()
    assert kernel.taken == FIRST + SECOND


def test_waiting_answers_share_a_send() -> None:
    kernel = Kernel()
    send_queue = answers_on(kernel, RdyLevel(adaptive=False))
    send_queue.commands += [b"NOP\n", b"TOUCH 0123456789abcdef\n"]
    send_queue.fins += [b"0123456789abcde0", b"0123456789abcde1"]
    assert send_queue.has_unsent
    send_queue.flush()
    assert not send_queue.has_unsent
    assert kernel.segments == [
        b"NOP\nTOUCH 0123456789abcdef\nFIN 0123456789abcde0\nFIN 0123456789abcde1\n"
    ]
    assert (send_queue.finished, send_queue.requeued) == (2, 0)


def test_one_nop_waits_however_many_heartbeats_come() -> None:
    kernel = Kernel(room=2)
    send_queue = publishes_on(kernel)
    for _ in range(1000):
        send_queue.answer_heartbeat()
        send_queue.flush()
    # Half of the first one, and one that waits behind it.
    assert kernel.taken == b"NO"
    assert len(send_queue.commands) == 1
    kernel.room = float("inf")
    assert send_queue.flush()
    assert kernel.taken == b"NOP\nNOP\n"


@pytest.mark.parametrize("kind", ["fins", "commands"])
def test_an_nsqd_that_reads_too_slowly_is_given_up_at_the_bound_of_answers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not silent, and takes no more than it is given: only the number shows it."""
    monkeypatch.setattr("gnsqsync.connection.answer_queue._MOST_WAITING", 1000)
    kernel = Kernel(room=1)
    send_queue = answers_on(kernel, RdyLevel(adaptive=False))
    queue = getattr(send_queue, kind)
    count = 0
    while send_queue.broken is None:
        queue.append(b"0123456789abcdef")
        count += 1
        kernel.room += count % 50 == 0
        kernel.time += 0.1
        send_queue.flush()
        # As many again may be in the part of a send that the kernel has not taken.
        assert count <= 2100
    assert len(queue) == 1001
    assert isinstance(send_queue.broken, ConnectionLost)
    assert "sends and does not read" in str(send_queue.broken)
    assert kernel.is_shut


def test_rdy_is_lowered_before_the_answers_and_raised_after_them() -> None:
    kernel = Kernel()
    level = RdyLevel(adaptive=False)
    send_queue = answers_on(kernel, level)
    level.share = 5
    send_queue.fins.append(b"0123456789abcde0")
    send_queue.flush()
    level.share = 0
    send_queue.commands.append(b"REQ 0123456789abcde1 0\n")
    send_queue.fins.append(b"0123456789abcde2")
    send_queue.flush()
    # Two changes that take each other back are none.
    level.share = 7
    level.share = 0
    send_queue.flush()
    assert kernel.segments == [
        b"FIN 0123456789abcde0\nRDY 5\n",
        b"RDY 0\nREQ 0123456789abcde1 0\nFIN 0123456789abcde2\n",
    ]
    assert send_queue.rdy_sent == 0
    assert (send_queue.finished, send_queue.requeued) == (2, 1)


def test_a_caller_waits_its_time_and_the_next_one_goes_on_where_it_stopped() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    first, second = slot(FIRST), slot(SECOND)
    send_queue.submit(first, 2.0)
    assert kernel.time == 102.0
    assert kernel.taken == FIRST[:4]
    assert send_queue.has_unsent
    kernel.room = 3
    send_queue.submit(second, 0.0)
    assert kernel.taken == FIRST[:7]
    assert send_queue.take_back(second)
    kernel.room = 1000
    send_queue.submit(slot(THIRD), 0.0)
    assert kernel.taken == FIRST + THIRD
    assert not kernel.is_shut


def test_while_the_kernel_is_full_a_publish_can_be_taken_back() -> None:
    """No byte of it has left, though its turn to be written had come."""
    kernel = Kernel(room=len(FIRST))
    send_queue = publishes_on(kernel)
    send_queue.submit(slot(FIRST + SECOND), 0.5)
    kernel.room = len(SECOND)
    assert send_queue.flush()
    third = slot(THIRD)
    # Either way to send leaves it where it was.
    assert not send_queue.send(third, send_queue._now())
    send_queue.flush(0.5)
    assert send_queue.take_back(third)
    kernel.room = 1000
    assert send_queue.send(slot(THIRD), send_queue._now())
    assert kernel.taken == FIRST + SECOND + THIRD
    assert len(send_queue.pending) == 2


@pytest.mark.parametrize(
    ("room", "taken_back"),
    [
        (0, [True, True, True]),
        (1, [False, True, True]),
        (len(FIRST), [False, True, True]),
        (len(FIRST) + 1, [False, False, True]),
        (len(FIRST + SECOND), [False, False, True]),
    ],
)
def test_publishes_not_begun_can_be_taken_back_from_a_full_kernel(
    room: int, taken_back: list[bool]
) -> None:
    kernel = Kernel(room)
    send_queue = publishes_on(kernel)
    slots = [slot(FIRST), slot(SECOND), slot(THIRD)]
    send_queue.slots.extend(slots)
    assert not send_queue.flush()
    assert kernel.taken == (FIRST + SECOND + THIRD)[:room]
    assert [send_queue.take_back(each) for each in slots] == taken_back
    kernel.room = 1000
    fourth = slot(FIRST)
    send_queue.submit(fourth, 1.0)
    begun = [each for each, free in zip(slots, taken_back, strict=True) if not free]
    assert kernel.taken == b"".join(each.data for each in [*begun, fourth])
    assert list(send_queue.pending) == [*begun, fourth]


def test_no_publish_of_an_encoded_batch_is_taken_back() -> None:
    kernel = Kernel(1)
    kernel.is_clear = False
    send_queue = publishes_on(kernel)
    slots = [slot(FIRST), slot(SECOND)]
    send_queue.slots.extend(slots)
    assert not send_queue.flush()
    assert [send_queue.take_back(each) for each in slots] == [False, False]


def test_while_the_kernel_is_full_a_sender_that_waits_is_no_dead_one() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    send_queue.submit(slot(FIRST), 0.5)
    kernel.room = len(FIRST) - 4
    assert send_queue.flush()
    send_queue._lock.acquire()
    for _ in range(20):
        kernel.time += 1
        assert not send_queue.submit(slot(SECOND), 0.0) or not kernel.is_shut
    assert send_queue.broken is None


def test_a_stall_before_a_publish_is_a_stall() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    send_queue.submit(slot(FIRST), 0.5)
    kernel.room = len(FIRST) - 4
    assert send_queue.flush()
    send_queue.submit(slot(SECOND), 1000.0)
    assert "took no byte for 30 s" in str(send_queue.broken)


def test_a_deadline_that_is_over_does_not_wait() -> None:
    kernel = Kernel(room=0)
    send_queue = publishes_on(kernel)
    send_queue.submit(slot(FIRST), -1.0)
    assert kernel.time == 100.0


def test_a_kernel_that_takes_nothing_for_the_stall_time_is_given_up() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    send_queue.submit(slot(FIRST), 1.0)
    # A byte now and then is slow but not dead.
    for _ in range(3):
        kernel.time += STALL - 1
        kernel.room = 1
        send_queue.flush()
        assert not kernel.is_shut
    kernel.time += STALL - 1
    send_queue.flush()
    assert not kernel.is_shut
    kernel.time += 2
    send_queue.flush()
    assert kernel.is_shut
    assert isinstance(send_queue.broken, ConnectionLost)
    assert "took no byte for 30 s" in str(send_queue.broken)


def test_a_caller_with_much_time_gives_a_stalled_connection_up_too() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)
    cut = slot(FIRST)
    send_queue.submit(cut, 1000.0)
    assert kernel.is_shut
    assert STALL <= kernel.time - 100 <= 3 * STALL
    send_queue.close(ConnectionLost("stalled"))
    assert isinstance(cut.error, NotSent)


def test_a_broken_send_wakes_the_reading_thread_and_raises_nothing() -> None:
    def fail() -> None:
        raise OSError(errno.ENOBUFS, "no buffers")

    kernel = Kernel()
    kernel.on_send = fail
    send_queue = publishes_on(kernel)
    send_queue.commands.append(b"NOP\n")
    send_queue.flush()
    assert kernel.is_shut
    assert isinstance(send_queue.broken, OSError)


def test_a_peer_that_closed_may_have_said_why() -> None:
    """What it sent is still to be read, so the stream is not shut; it ends by itself."""
    kernel = Kernel(room=0, breaks=True)
    send_queue = publishes_on(kernel)
    send_queue.commands.append(b"NOP\n")
    send_queue.flush()
    assert isinstance(send_queue.broken, BrokenPipeError)
    assert not kernel.is_shut


def test_a_killed_greenlet_leaves_no_torn_command_and_no_lock() -> None:
    class Killed(BaseException):
        """As GreenletExit and KeyboardInterrupt."""

    def kill() -> None:
        raise Killed

    kernel = Kernel(room=4)
    kernel.on_wait = kill
    send_queue = publishes_on(kernel)
    torn = slot(FIRST)
    with pytest.raises(Killed):
        send_queue.submit(torn, 1.0)
    assert kernel.is_shut
    # Which waits for the lock, as the reading thread does.
    send_queue.close(ConnectionLost("killed"))
    assert isinstance(torn.error, NotSent)


def test_a_lock_to_write_that_nobody_gives_back() -> None:
    """As a signal handler leaves it that raises just when a sender has got it."""
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    send_queue._lock.acquire()
    waiting = slot(FIRST)
    assert send_queue.submit(waiting, 0.0)
    kernel.time += 4
    # Another thread has sent meanwhile, and a third one has the lock now.
    send_queue._holds += 1
    for seconds in (0, 4):
        kernel.time += seconds
        assert not send_queue.flush()
        assert not kernel.is_shut
    for seconds in (2, 2):
        kernel.time += seconds
        assert not kernel.is_shut
        assert not send_queue.flush()
    assert kernel.is_shut
    assert isinstance(send_queue.broken, ConnectionLost)
    assert not send_queue.submit(slot(SECOND), 0.0)
    send_queue.close(ConnectionLost("cut"))
    assert kernel.is_closed
    assert outcome(waiting) == "NotSent"


def test_another_sender_is_not_taken_for_the_one_that_was_seen_before() -> None:
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    send_queue.commands.append(b"NOP\n")
    with send_queue._lock:
        assert not send_queue.flush()
    # Much later another thread holds the lock, and has not sent yet.
    kernel.time += 100
    with send_queue._lock:
        assert not send_queue.flush()
    kernel.time += 100
    assert send_queue.flush()
    with send_queue._lock:
        send_queue.commands.append(b"NOP\n")
        assert not send_queue.flush()
    assert kernel.taken == b"NOP\n"
    assert not kernel.is_shut


def test_a_sender_among_many_busy_threads_is_not_taken_for_a_dead_one() -> None:
    kernel = Kernel()
    kernel.wait_to_run = 30.0
    send_queue = publishes_on(kernel)
    send_queue.commands.append(b"NOP\n")
    with send_queue._lock:
        for _ in range(3):
            assert not send_queue.flush()
            kernel.time += 10.0
    assert not kernel.is_shut
    assert send_queue.flush()


class SlowKernel(Kernel):
    """It takes one byte each 0.4 s."""

    def wait_writable(self, timeout: float) -> bool:
        self.time += min(timeout, 0.4)
        self.room = 1
        self.on_wait()
        return True


def test_a_caller_that_writes_for_others_leaves_at_its_deadline() -> None:
    kernel = SlowKernel(room=0)
    send_queue = publishes_on(kernel)
    kernel.on_wait = lambda: send_queue.slots.append(slot(b"x"))
    send_queue.submit(slot(b"y"), 1.0)
    assert kernel.time == pytest.approx(101.0)
    assert send_queue.has_unsent


def test_a_sender_that_waits_for_room_is_not_taken_for_a_dead_one() -> None:
    kernel = Kernel(room=4)
    send_queue = publishes_on(kernel)

    def look_meanwhile() -> None:
        send_queue.flush()

    kernel.on_wait = look_meanwhile
    assert send_queue.submit(slot(FIRST), STALL - 1)
    assert kernel.time > 100 + STALL - 2
    assert not kernel.is_shut


def test_a_close_waits_for_a_sender_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.policy.ownership.GRACE_SECONDS", 0.05)
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    send_queue._lock.acquire()
    send_queue.close(ConnectionLost("gone"))
    assert kernel.is_closed


def test_a_cancelled_future_keeps_its_place_in_the_queue_of_answers() -> None:
    from concurrent.futures import Future

    kernel = Kernel()
    send_queue = publishes_on(kernel)
    futures: list[Future[None]] = [Future(), Future(), Future()]
    for future, data in zip(futures, (FIRST, SECOND, THIRD), strict=True):
        send_queue.submit(PublishSlot(data, choose().latch(), future), 0.0)
    assert futures[0].cancel()
    send_queue.pending.popleft().succeed()
    assert not futures[1].done()
    send_queue.pending.popleft().succeed()
    assert futures[1].result(0) is None
    assert futures[2].cancel()
    send_queue.close(ConnectionLost("gone"))
    assert futures[2].cancelled()


def test_many_threads_keep_their_order() -> None:
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    published = [[slot(b"%d-%d\n" % (who, n)) for n in range(300)] for who in range(8)]

    def publish(slots: list[PublishSlot]) -> None:
        for each in slots:
            send_queue.submit(each, 1.0)

    threads = [threading.Thread(target=publish, args=(slots,)) for slots in published]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not send_queue.slots
    lines = kernel.taken.decode().splitlines()
    # Answers come in the order of the bytes, so pending must have it too.
    assert [each.data.decode().strip() for each in send_queue.pending] == lines
    for who in range(8):
        mine = [line for line in lines if line.startswith(f"{who}-")]
        assert mine == [f"{who}-{n}" for n in range(300)]
    send_queue.close(ConnectionLost("the end"))
    assert all(isinstance(s.error, OutcomeUnknown) for slots in published for s in slots)


def test_a_loss_under_way_wakes_a_caller_that_waits_for_answers() -> None:
    """It found the connection open and a publish unanswered, when the close had begun."""
    kernel = Kernel()
    send_queue = publishes_on(kernel)
    begun, waits = threading.Event(), threading.Event()
    latch = choose().latch()
    woken: list[bool] = []

    class Noted:
        release = latch.release

        def wait(self, timeout: float) -> None:
            waits.set()
            woken.append(latch.wait(timeout))

    def until_somebody_waits(slot: PublishSlot) -> None:
        begun.set()
        waits.wait(10)

    def begin_to_close(wait: float = 0.0) -> bool:
        closer.start()
        return begun.wait(10)

    kernel.latch = Noted  # type: ignore[attr-defined]
    closer = threading.Thread(target=send_queue.close, args=["reset"])
    for _ in range(2):
        send_queue.submit(PublishSlot(FIRST, on_end=until_somebody_waits), 1.0)
    send_queue.flush = begin_to_close  # type: ignore[method-assign]
    send_queue.wait_until_answered(kernel.time + 10, 1.0)
    closer.join()
    assert woken == [True]
