"""An nsqd that follows a script: it answers, lies, drips, falls silent or resets.

It has a thread for each connection, on the ground of the test: loopback sockets, or the simulated
network. It uses no code of gnsqsync, so that both sides cannot share a mistake.

    with ScriptedNsqd([automatic(until="RDY"), message(b"x"), expect("FIN"), reset()]) as nsqd:
        ... connect to nsqd.address ...
        nsqd.wait_for("FIN")

Connection number n follows script number n. The last script serves all later connections. Without
scripts automatic() serves connections. After its last step a connection only records. Errors that a
script has found are raised at the end of the with block.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support import ground
from tests.support.waiting import LIMIT

RESPONSE, ERROR, MESSAGE = 0, 1, 2
WITH_BODY = ("IDENTIFY", "AUTH", "PUB", "MPUB", "DPUB")
WITH_OK = ("SUB", "PUB", "MPUB", "DPUB")

# nsqd's answer with its defaults: the 13 keys of docs/protocol/handshake#identify-answer.
NEGOTIATED = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}

_message_ids = itertools.count(0x18A203F27F269000)


class Ended(Exception):
    """The client closed the connection, or the scripted nsqd was told to stop."""


class Command(NamedTuple):
    name: str
    parameters: tuple[str, ...]
    body: bytes | None

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message_frame(
    body: bytes, *, id: bytes | None = None, attempts: int = 1, timestamp: int | None = None
) -> bytes:
    """Return a message frame, by default with a new id and timestamp."""
    id = b"%016x" % next(_message_ids) if id is None else id
    timestamp = time.time_ns() if timestamp is None else timestamp
    return frame(MESSAGE, struct.pack(">qH", timestamp, attempts) + id + body)


class Connection:
    """The server's end of one connection. Any thread may call the send methods."""

    def __init__(self, owner: ScriptedNsqd, sock: socket.socket) -> None:
        self.owner = owner
        self.socket: socket.socket | ssl.SSLSocket = sock
        self.socket.settimeout(None)
        self.commands: list[Command] = []
        self._buffer = b""
        self._send_lock = owner._ground.lock()

    def send(self, data: bytes) -> None:
        with self._send_lock:
            try:
                self.socket.sendall(data)
            except OSError as error:
                raise Ended from error

    def response(self, data: bytes = b"OK") -> None:
        self.send(frame(RESPONSE, data))

    def error(self, text: str) -> None:
        self.send(frame(ERROR, text.encode()))

    def message(self, body: bytes, **fields: Any) -> None:
        """Deliver a message. ``fields``: see message_frame()."""
        self.send(message_frame(body, **fields))

    def receive(self, timeout: float | None = None) -> Command:
        """Receive and record the next command. Ended or TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffer:
            self._fill(deadline)
        line, self._buffer = self._buffer.split(b"\n", 1)
        name, *parameters = line.decode().split(" ")
        body = None
        if name in WITH_BODY:
            (size,) = struct.unpack(">i", self.take(4, deadline))
            body = self.take(size, deadline)
        command = Command(name, tuple(parameters), body)
        self.owner.record(self, command)
        return command

    def take(self, size: int, deadline: float | None = None) -> bytes:
        """Read exactly `size` bytes from the client."""
        while len(self._buffer) < size:
            self._fill(deadline)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _fill(self, deadline: float | None) -> None:
        if deadline is None:
            self.socket.settimeout(None)
        else:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise
        except OSError as error:
            raise Ended from error
        if not data:
            raise Ended
        self._buffer += data

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the server's part of a TLS handshake. Ended if the client refuses it."""
        try:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        except OSError as error:
            raise Ended from error

    def answer(self, command: Command, **changes: Any) -> None:
        """Answer as a healthy nsqd does. `changes` go into the answer to IDENTIFY."""
        if command.name == "IDENTIFY":
            asked = command.json
            context = self.owner.tls
            wants_tls = context is not None and bool(asked.get("tls_v1"))
            answer = {**NEGOTIATED, "tls_v1": wants_tls}
            if asked.get("msg_timeout"):
                answer["msg_timeout"] = asked["msg_timeout"]
            answer.update(changes)
            if not asked.get("feature_negotiation"):
                self.response()
                return
            self.response(json.dumps(answer).encode())
            if wants_tls and context is not None:
                self.start_tls(context)
                self.response()
        elif command.name == "AUTH":
            self.response(b'{"identity": "", "identity_url": "", "permission_count": 1}')
        elif command.name == "CLS":
            self.response(b"CLOSE_WAIT")
        elif command.name in WITH_OK:
            self.response()

    def shutdown(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The connection is gone already.


Step = Callable[[Connection], None]
Hook = Callable[[Connection, Command], None]


def automatic(
    until: str | None = None, hooks: Mapping[str, Hook] | None = None, **changes: Any
) -> Step:
    """Answer every command. End after the first command named `until`.

    A hook replaces the answer to its command. It may call connection.answer(command).
    `changes` go into the answer to IDENTIFY.
    """

    def step(connection: Connection) -> None:
        while True:
            command = connection.receive()
            hook = (hooks or {}).get(command.name)
            if hook is not None:
                hook(connection, command)
            else:
                connection.answer(command, **changes)
            if command.name == until:
                return

    return step


def expect(name: str, *parameters: str, timeout: float = LIMIT) -> Step:
    """Read the next command except NOP. Check its name, and its parameters if given."""

    def step(connection: Connection) -> None:
        while True:
            try:
                command = connection.receive(timeout)
            except (Ended, TimeoutError) as error:
                raise AssertionError(f"{type(error).__name__} in place of {name}") from error
            if command.name != "NOP" or name == "NOP":
                break
        wanted = " ".join((name, *parameters))
        assert command.name == name, f"{command} in place of {wanted}"
        assert not parameters or command.parameters == parameters, f"{command}, not {wanted}"

    return step


def send(*parts: bytes) -> Step:
    """Send bytes unchanged."""
    return lambda connection: connection.send(b"".join(parts))


def response(data: bytes = b"OK") -> Step:
    return send(frame(RESPONSE, data))


def heartbeat() -> Step:
    return response(b"_heartbeat_")


def error(text: str) -> Step:
    return send(frame(ERROR, text.encode()))


def message(body: bytes, **fields: Any) -> Step:
    """Deliver a message. ``fields``: see message_frame()."""
    return lambda connection: connection.message(body, **fields)


def drip(data: bytes, pause: float = 0.001) -> Step:
    """Send byte after byte, each in a segment of its own."""

    def step(connection: Connection) -> None:
        for byte in data:
            connection.send(bytes([byte]))
            connection.owner.sleep(pause)

    return step


def delay(seconds: float) -> Step:
    return lambda connection: connection.owner.sleep(seconds)


def wait_until(event: threading.Event) -> Step:
    """Wait until the test sets the event."""

    def step(connection: Connection) -> None:
        while not event.is_set():
            connection.owner.sleep(0.01)

    return step


def call(function: Callable[[Connection], None]) -> Step:
    """Call a function with the connection."""
    return function


def silence() -> Step:
    """Read nothing and send nothing until the end of the test."""
    return lambda connection: connection.owner.sleep(None)


def half_close() -> Step:
    """End the stream to the client."""

    def step(connection: Connection) -> None:
        connection.socket.shutdown(socket.SHUT_WR)

    return step


def close() -> Step:
    """Close in the normal way."""

    def step(connection: Connection) -> None:
        connection.shutdown()
        raise Ended

    return step


def reset() -> Step:
    """Close with RST in place of FIN."""

    def step(connection: Connection) -> None:
        linger = struct.pack("ii", 1, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.socket.close()
        raise Ended

    return step


class ScriptedNsqd:
    """The listener and its connections (see the module). `tls`: a server context.

    With `tls` automatic() gives TLS to a client that asks for tls_v1. wait_for() and stop() block
    the thread, so a test whose client runs on greenlets calls them from a native thread, or polls
    `commands`.
    """

    def __init__(self, *scripts: Sequence[Step], tls: ssl.SSLContext | None = None) -> None:
        self.scripts: list[Sequence[Step]] = list(scripts) or [[automatic()]]
        self.tls = tls
        self.connections: list[Connection] = []
        self.commands: list[Command] = []
        self.failures: list[BaseException] = []
        self._ground = ground.current()
        self._changed = self._ground.condition()
        self._stopping = self._ground.event()
        self._threads: list[ground.Thread] = []
        self._listener = self._ground.listener(self._accept)

    def __enter__(self) -> ScriptedNsqd:
        self.accept_connections()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self.stop()
        if kind is None and self.failures:
            raise self.failures[0]

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    def accept_connections(self) -> None:
        """Listen, at first on a port that is free, later on the same port."""
        self._listener.open()

    def refuse_connections(self) -> None:
        """Stop listening. Connections stay."""
        self._listener.refuse()

    def drop_connections(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.shutdown()

    def stop(self) -> None:
        """End everything and join the threads."""
        self._stopping.set()
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), thread.name

    def sleep(self, seconds: float | None) -> None:
        """Wait, forever if ``seconds`` is None. Ended when stop() is called."""
        if self._stopping.wait(seconds):
            raise Ended

    def record(self, connection: Connection, command: Command) -> None:
        with self._changed:
            connection.commands.append(command)
            self.commands.append(command)
            self._changed.notify_all()

    def received(self, name: str) -> list[Command]:
        """Return the commands of this name so far, of all connections."""
        return [command for command in list(self.commands) if command.name == name]

    def wait_for(self, name: str, count: int = 1, timeout: float = LIMIT) -> Command:
        """Wait for the command of this name with number `count` (from 1), and return it."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.received(name)) >= count, timeout)
            assert came, f"{len(self.received(name))} of {count} {name}; {self.commands}"
            return self.received(name)[count - 1]

    def wait_for_connections(self, count: int, timeout: float = LIMIT) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.connections) >= count, timeout)
            assert came, f"{len(self.connections)} of {count} connections"

    def _accept(self, sock: Any) -> None:
        connection = Connection(self, sock)
        with self._changed:
            number = len(self.connections)
            self.connections.append(connection)
            self._changed.notify_all()
        script = self.scripts[min(number, len(self.scripts) - 1)]
        name = f"scripted nsqd connection {number}"
        self._threads.append(self._ground.spawn(name, self._serve, connection, script))

    def _serve(self, connection: Connection, script: Sequence[Step]) -> None:
        try:
            magic = connection.take(4)
            assert magic == b"  V2", magic
            for step in script:
                step(connection)
            while True:
                connection.receive()
        except Ended:
            pass  # This is the normal end.
        except BaseException as failure:
            if not self._stopping.is_set():
                self.failures.append(failure)
        finally:
            connection.shutdown()
            connection.socket.close()
