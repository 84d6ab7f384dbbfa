"""The floor: the cheapest correct loop in plain Python for each row, on a bare socket.

"Correct" means: every answer is looked at, every frame is parsed, heartbeats are answered, a
handler that raises leads to REQ, each message is answered once. What is missing is all that lies
off the path of a message: reconnecting, lookup, backoff, sharing of RDY, shutdown.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from struct import Struct

import measure
import rawnsq
from measure import Meter, Order

FRAME = Struct(">iiqH16s")  # docs/protocol/commands#message-frame
MAX_ATTEMPTS = 5
FINISHED, REQUEUED = 1, 2
FIN_DELAY = 0.005


def publish(order: Order, meter: Meter) -> None:
    if order.callers > 1:
        publish_shared(order, meter)
        return
    sock = rawnsq.connect(order.host_port)
    head, body = f"PUB {order.topic}\n".encode(), order.body
    send, pack, read_ok = sock.sendall, rawnsq.SIZE.pack, rawnsq.read_ok

    def publish_one() -> None:
        send(b"".join((head, pack(len(body)), body)))
        read_ok(sock)

    measure.one_by_one(order, meter, publish_one)


class Leader:
    """One connection for many threads: who holds the lock sends for all and reads their answers.

    Whoever finds the lock taken waits for its own latch. The holder looks at the list again after
    it has let go of the lock, so nothing that was appended in between is left behind.
    """

    def __init__(self, order: Order) -> None:
        self._sock = rawnsq.connect(order.host_port)
        self._head = f"PUB {order.topic}\n".encode()
        self._lock = threading.Lock()
        self._waiting: list[tuple[bytes, _thread.LockType]] = []
        self._error: Exception | None = None

    def publish(self, body: bytes) -> None:
        latch = _thread.allocate_lock()
        latch.acquire()
        command = b"".join((self._head, rawnsq.SIZE.pack(len(body)), body))
        waiting = self._waiting
        waiting.append((command, latch))
        while waiting and self._lock.acquire(False):
            batch = waiting[:]
            del waiting[: len(batch)]
            try:
                self._exchange(batch)
            except Exception as error:
                self._error = error
            finally:
                self._lock.release()
                for _, owner in batch:
                    owner.release()
        latch.acquire()
        if self._error is not None:
            raise self._error

    def _exchange(self, batch: list[tuple[bytes, _thread.LockType]]) -> None:
        if len(batch) == 1:
            self._sock.sendall(batch[0][0])
            rawnsq.read_ok(self._sock)
        else:
            self._sock.sendall(b"".join([command for command, _ in batch]))
            rawnsq.read_oks(self._sock, len(batch))


def publish_shared(order: Order, meter: Meter) -> None:
    leader, body = Leader(order), order.body
    measure.in_threads(order, meter, lambda: leader.publish(body))


def publish_many(order: Order, meter: Meter) -> None:
    sock = rawnsq.connect(order.host_port)
    bodies = [order.body] * order.batch

    def publish_batch() -> None:
        sock.sendall(rawnsq.mpub(order.topic, bodies))
        rawnsq.read_ok(sock)

    measure.one_by_one(order, meter, publish_batch)


class Message:
    __slots__ = ("attempts", "body", "id", "state", "timestamp")

    def __init__(self, timestamp: int, attempts: int, id: bytes, body: bytes) -> None:
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = id
        self.body = body
        self.state = 0


class Consumer:
    """One connection, handlers inline. ``auto``: the return of the handler is the FIN."""

    def __init__(self, order: Order, meter: Meter) -> None:
        self._order = order
        self._meter = meter
        connection = rawnsq.connect(order.host_port, order.transport, order.ca_file)
        self.send, self._receive = connection.sendall, connection.recv
        connection.sendall(f"SUB {order.topic} {order.channel}\n".encode())
        if rawnsq.read_answer(connection) != b"OK":
            raise rawnsq.Refused("SUB was not answered by OK")
        connection.sendall(b"RDY %d\n" % order.max_in_flight)

    def run(self) -> None:
        meter, unpack, make = self._meter, FRAME.unpack_from, Message
        receive, handler, finished = self._receive, self._handler(), FINISHED
        in_flight, rest = 0, b""
        while not meter.stopped:
            data = receive(rawnsq.CHUNK)
            if not data:
                raise rawnsq.Refused("nsqd closed the connection")
            if rest:
                data = rest + data
            done: list[bytes] = []
            position, end = 0, len(data)
            last = end - FRAME.size
            while position <= last:
                size, kind, timestamp, attempts, id = unpack(data, position)
                after = position + 4 + size
                if after > end:
                    break
                if kind == 2:
                    message = make(timestamp, attempts, id, data[position + 34 : after])
                    in_flight += 1
                    try:
                        if attempts <= MAX_ATTEMPTS:
                            handler(message)
                    except Exception:
                        message.state = REQUEUED
                        in_flight -= 1
                        self.send(b"REQ %b 0\n" % id)
                    else:
                        message.state = finished
                        done.append(id)
                else:
                    self._answer(data[position + 4 : after])
                position = after
            rest = self._short_frames(data[position:])
            if done:
                self.send(b"FIN " + b"\nFIN ".join(done) + b"\n")
                in_flight -= len(done)

    def _handler(self) -> Callable[[Message], None]:
        return measure.counting_handler(self._order, self._meter, attrgetter("body"), lambda: None)

    def _short_frames(self, rest: bytes) -> bytes:
        """Takes whole frames shorter than a message's head, such as heartbeats, off the rest."""
        while len(rest) >= 4:
            after = 4 + rawnsq.SIZE.unpack_from(rest)[0]
            if len(rest) < after:
                break
            self._answer(rest[4:after])
            rest = rest[after:]
        return rest

    def _answer(self, data: bytes) -> None:
        if data != b"\x00\x00\x00\x00_heartbeat_":
            raise rawnsq.Refused(f"unexpected frame {data!r}")
        self.send(b"NOP\n")


class FullMessage(Message):
    """A message that any thread may finish, once; its connection collects the FINs."""

    __slots__ = ("connection",)
    connection: FullConsumer

    def finish(self) -> bool:
        connection = self.connection
        lock = connection.lock
        lock.acquire()
        if self.state:
            lock.release()
            return False
        self.state = FINISHED
        connection.in_flight -= 1
        connection.done.append(self.id)
        lock.release()
        return True

    def requeue(self) -> bool:
        connection = self.connection
        with connection.lock:
            if self.state:
                return False
            self.state = REQUEUED
            connection.in_flight -= 1
        connection.send(b"REQ %b 0\n" % self.id)
        return True


class FullConsumer(Consumer):
    """``real``: claim under a lock, finish() as a method, no FIN older than 5 ms while handling."""

    def __init__(self, order: Order, meter: Meter) -> None:
        super().__init__(order, meter)
        self.lock = threading.Lock()
        self.done: list[bytes] = []
        self.in_flight = 0

    def run(self) -> None:
        meter, unpack, clock, lock = self._meter, FRAME.unpack_from, time.monotonic, self.lock
        receive, handler = self._receive, self._handler()
        rest = b""
        while not meter.stopped:
            data = receive(rawnsq.CHUNK)
            if not data:
                raise rawnsq.Refused("nsqd closed the connection")
            if rest:
                data = rest + data
            flush_at = clock() + FIN_DELAY
            position, end = 0, len(data)
            last = end - FRAME.size
            while position <= last:
                size, kind, timestamp, attempts, id = unpack(data, position)
                after = position + 4 + size
                if after > end:
                    break
                if kind == 2:
                    message = FullMessage(timestamp, attempts, id, data[position + 34 : after])
                    message.connection = self
                    with lock:
                        self.in_flight += 1
                    try:
                        if attempts <= MAX_ATTEMPTS:
                            handler(message)
                        message.finish()
                    except Exception:
                        message.requeue()
                    if clock() >= flush_at:
                        self._flush()
                        flush_at = clock() + FIN_DELAY
                else:
                    self._answer(data[position + 4 : after])
                position = after
            rest = self._short_frames(data[position:])
            self._flush()

    def _flush(self) -> None:
        with self.lock:
            ids, self.done = self.done, []
        if ids:
            self.send(b"FIN " + b"\nFIN ".join(ids) + b"\n")


def consume(order: Order, meter: Meter) -> None:
    kind = FullConsumer if order.flavour == "real" else Consumer
    kind(order, meter).run()


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "waits": publish,
            "publish_many": publish_many,
            "consume": consume,
            "latency": consume,
        }
    )
