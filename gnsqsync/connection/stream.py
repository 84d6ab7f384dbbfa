"""Socket and the layers on it: TLS, then Snappy or DEFLATE. Knows no frame and no command.

Received bytes go up through the layers, and bytes to be sent go down. Without layers, callers pass
both to the socket themselves (``receive``, ``send_some``).

Surprise: a received chunk may decode to nothing, or to several portions, because a layer returns a
limited portion at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

from gnsqsync.errors import ConnectionLost
from gnsqsync.runtime import Runtime, Socket
from gnsqsync.wire.codec import Layer
from gnsqsync.wire.tls import TlsLayer

__all__ = ["RECV_SIZE", "Stream"]

# Bytes of one receive. A larger buffer is slower, because it is mapped anew at each call.
RECV_SIZE = 65536


class Stream:
    """Bytes in and bytes out, through the layers that the handshake switched on.

    One thread receives while another may send. The lock of the SendQueue keeps two senders apart. A
    layer is pushed during the handshake only, when one thread has the stream alone.
    """

    def __init__(self, sock: Socket, runtime: Runtime) -> None:
        self._sock = sock
        self._runtime = runtime
        self._layers: list[Layer] = []
        self._tls: TlsLayer | None = None
        # True while no layer is on: the bytes on the socket are those of the protocol.
        self.is_clear: bool = True
        # Read timeout that the socket was last given, in seconds.
        self.read_timeout: float = math.inf
        # Appends the bytes that arrive, undecoded, to a deque: see Socket.receive.
        self.receive: Callable[[deque[bytes], int], None] = sock.receive
        # Passes encoded bytes to the kernel. Returns how many it took; 0 when its buffer is full.
        self.send_some: Callable[[bytes | memoryview], int] = sock.send
        # Returns True if nsqd's EOF is here, read or not, or a layer has decoded one.
        self.peer_has_ended: Callable[[], bool] = sock.peer_has_ended

    def push(self, layer: Layer) -> None:
        """Put a layer on top of the others."""
        self._layers.append(layer)
        self.is_clear = False
        self.peer_has_ended = self._peer_or_layer_has_ended
        if isinstance(layer, TlsLayer):
            self._tls = layer

    def set_read_timeout(self, seconds: float | None) -> None:
        self._sock.set_read_timeout(seconds)
        self.read_timeout = math.inf if seconds is None else seconds

    def recv_once(self) -> bytes | None:
        """Return the next decoded bytes, b"" at the end, None if the bytes decoded to nothing.

        A compressor's flush may decode to nothing. Raises TimeoutError, OSError or ProtocolError.
        """
        if self._layers and self._layers[-1].pending:
            return self._layers[-1].decode(b"") or None
        # Either the socket or a layer tells the end.
        if any(layer.eof for layer in self._layers):
            return b""
        data = self._sock.recv(RECV_SIZE)
        if not data:
            return b""
        decoded = self.decode(data)
        if decoded or not self._layers:
            return decoded
        return b"" if any(layer.eof for layer in self._layers) else None

    def decode_received(self, data: bytes) -> Iterator[bytes]:
        """Decode a chunk of ``receive`` and yield its portions; b"" at the end of the stream."""
        if data:
            decoded = self.decode(data)
            if decoded:
                yield decoded
            while self._layers[-1].pending:
                if decoded := self._layers[-1].decode(b""):
                    yield decoded
        if not data or any(layer.eof for layer in self._layers):
            yield b""

    def recv_raw(self) -> bytes:
        """Return the next undecoded bytes, for a layer's own handshake."""
        return self._sock.recv(RECV_SIZE)

    def decode(self, data: bytes) -> bytes:
        for layer in self._layers:
            data = layer.decode(data)
        return data

    def decode_top(self, data: bytes) -> bytes:
        """Decode bytes that the lower layers decoded before the top layer was pushed."""
        return self._layers[-1].decode(data)

    def encode(self, data: bytes) -> bytes:
        for layer in reversed(self._layers):
            data = layer.encode(data)
        return data

    def _peer_or_layer_has_ended(self) -> bool:
        return self._sock.peer_has_ended() or any(layer.eof for layer in self._layers)

    def wait_writable(self, timeout: float) -> bool:
        return self._sock.wait_writable(timeout)

    def send_raw(self, data: bytes, deadline: float) -> None:
        """Send all of the encoded bytes before ``deadline``, else raise ConnectionLost."""
        view = memoryview(data)
        while view:
            sent = self._sock.send(view)
            view = view[sent:]
            if view and not self._sock.wait_writable(max(0.0, deadline - self._runtime.now())):
                raise ConnectionLost(f"{self._sock.peer} did not take our bytes in time")

    def end_sending(self) -> None:
        """Send EOF after all sent bytes. Never raises.

        nsqd then handles what it has and closes, which our receive sees.
        """
        self._say_goodbye()
        self._sock.end_sending()

    def shutdown(self) -> None:
        """Shut down both directions, which wakes a blocked receive. Never raises."""
        self._sock.shutdown()

    def close(self) -> None:
        """Close the descriptor. With TLS, try to send a close_notify first. Never raises."""
        self._say_goodbye()
        self._sock.shutdown()
        self._sock.close()

    def _say_goodbye(self) -> None:
        if self._tls is not None:
            try:
                self._sock.send(self._tls.close())
            except OSError:
                pass  # the peer is gone already

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without a word to the parent's peer."""
        self._sock.abandon()
