"""Opening of a connection, from an address to a stream: dial, IDENTIFY, upgrades, AUTH, SUB.

The steps come from wire.handshake. This module does the I/O between them, under one deadline.

``run`` dials, then drives the generator ``handshake``: it yields bytes to send, answers to wait
for, and layers to switch on.

Surprise: bytes behind the answer to IDENTIFY belong to the next layer. They are taken out of the
decoder and decoded again by that layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnsqsync.addresses import Address
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, NSQError, ProtocolError
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import Cutter, Runtime
from gnsqsync.wire.codec import DeflateLayer, SnappyLayer
from gnsqsync.wire.frames import FrameDecoder, Reply
from gnsqsync.wire.handshake import Negotiated, Receive, Send, Upgrade, handshake
from gnsqsync.wire.tls import TlsLayer

__all__ = ["Opening", "subscribe_once"]


class Opening:
    """Attempt to open a connection. Runs on the thread that calls ``run``.

    ``cutter`` ends a dial that is under way; once there is a stream, shut the stream down instead.
    After ``run``: ``replies`` arrived after the last answer. ``round_trip`` is the seconds of the
    quickest answer, ``last_took`` those of the last one, which is SUB on a subscribed connection.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        runtime: Runtime,
        decoder: FrameDecoder,
        *,
        topic: str | None = None,
        channel: str | None = None,
    ) -> None:
        """``topic`` and ``channel``: those to subscribe to, None on a connection that publishes."""
        self.address = address
        self.options = options
        self.runtime = runtime
        self.decoder = decoder
        self.cutter: Cutter = runtime.cutter()
        self.replies: deque[Reply] = deque()
        self.round_trip: float = 0.0
        self.last_took: float = 0.0
        self._topic = topic
        self._channel = channel
        self._deadline = 0.0
        self._doing = "connecting"

    def run(self, use: Callable[[Stream], None], timeout: float) -> Negotiated:
        """Dial and do the handshake within ``timeout`` seconds. Return what was agreed.

        ``use`` gets the stream as soon as there is one, so that a close from elsewhere can cut
        the handshake short. Raises ConnectionLost, NegotiationFailed, ProtocolError or the
        ServerError that nsqd answered; the stream is then closed.
        """
        self._deadline = self.runtime.now() + timeout
        target = self.options.dial_address(self.address)
        where = str(self.address)
        if target != self.address:
            where += f" (address_map: {target})"
        try:
            local = self.options.local_address()
            sock = self.runtime.connect(target, timeout, local, self.cutter)
            stream = Stream(sock, self.runtime)
        except OSError as error:
            # The runtime's text names the address and what each of its attempts met.
            raise ConnectionLost(error.strerror or str(error)) from error
        try:
            use(stream)
            return self._negotiate(stream, where)
        except BaseException as error:  # even a kill: no other thread closes the stream
            stream.close()
            if isinstance(error, TimeoutError):
                raise ConnectionLost(
                    f"nsqd at {where} did not finish the handshake within {timeout:g} s;"
                    f" it ended while {self._doing}"
                ) from error
            if isinstance(error, OSError):
                raise ConnectionLost(
                    f"connection to nsqd at {where} failed while {self._doing}: {error}"
                ) from error
            raise

    def _negotiate(self, stream: Stream, where: str) -> Negotiated:
        steps = handshake(
            self.options, topic=self._topic, channel=self._channel, server=str(self.address)
        )
        answer: Reply | None = None
        asked = 0.0
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                negotiated: Negotiated = end.value
                return negotiated
            answer = None
            if isinstance(step, Send):
                stream.send_raw(stream.encode(step.data), self._deadline)
            elif isinstance(step, Receive):
                doing = f"waiting for the answer to {step.answer_to}"
                # After a heartbeat, the same answer is waited for again: keep the first moment.
                if doing != self._doing:
                    self._doing, asked = doing, self.runtime.now()
                answer = self._next_reply(stream, where)
                took = self.last_took = self.runtime.now() - asked
                self.round_trip = min(self.round_trip or took, took)
            else:
                self._upgrade(stream, step)

    def _next_reply(self, stream: Stream, where: str) -> Reply:
        while not self.replies:
            # Checked after the replies: one ahead of the broken frame may explain the break.
            broken = self.decoder.broken
            if broken is not None:
                raise type(broken)(f"{self.address}: {broken}")
            self._allow_rest_of_time(stream)
            data = stream.recv_once()
            if data is None:
                continue  # a chunk that decodes to nothing does not extend the deadline
            if not data:
                raise ConnectionLost(f"nsqd at {where} closed the connection while {self._doing}")
            self._feed(data)
        return self.replies.popleft()

    def _feed(self, data: bytes) -> None:
        messages, replies = self.decoder.feed(data)
        if messages:
            raise ProtocolError(f"{self.address} sent a message before anybody asked for one")
        self.replies.extend(replies)

    def _upgrade(self, stream: Stream, step: Upgrade) -> None:
        # Frames ahead of the layer are unprotected, and anybody could have slipped them in, so
        # they must not answer a later command. Only a heartbeat is legitimate.
        if any(data != b"_heartbeat_" for _, data in self.replies):
            raise ProtocolError(
                f"{self.address} sent more than its answer to IDENTIFY before {step.kind} was on"
            )
        self.replies.clear()
        # Bytes that arrived after the answer belong to the next layer
        # (docs/protocol/handshake#upgrades).
        surplus = self.decoder.take_rest()
        self._doing = f"switching to {step.kind}"
        if step.kind == "tls":
            layer = TlsLayer(
                self.options.ssl_context(),
                server_hostname=self.options.tls_server_hostname or self.address.host or None,
                lock=self.runtime.lock(),
                peer=str(self.address),
            )
            self._tls_handshake(stream, layer, surplus)
            stream.push(layer)
            surplus = layer.decode(b"")
        else:
            stream.push(DeflateLayer(step.level) if step.kind == "deflate" else SnappyLayer())
            if surplus:
                surplus = stream.decode_top(surplus)
        if surplus:
            self._feed(surplus)

    def _tls_handshake(self, stream: Stream, layer: TlsLayer, data: bytes) -> None:
        while True:
            try:
                out = layer.handshake(data)
            except NSQError:
                # The alert tells nsqd the reason. One try is enough.
                stream.send_raw(layer.close(), self._deadline)
                raise
            if out:
                stream.send_raw(out, self._deadline)
            if layer.done:
                return
            self._allow_rest_of_time(stream)
            data = stream.recv_raw()
            if not data:
                raise ConnectionLost(
                    f"nsqd at {self.address} closed the connection during the TLS handshake"
                )

    def _allow_rest_of_time(self, stream: Stream) -> None:
        left = self._deadline - self.runtime.now()
        if left <= 0:
            raise TimeoutError
        stream.set_read_timeout(left)


def subscribe_once(
    address: Address,
    options: ConnectionOptions,
    runtime: Runtime,
    *,
    topic: str,
    channel: str,
    timeout: float,
) -> None:
    """Subscribe within ``timeout`` seconds, and close at once. Raises the errors of Opening.run."""
    decoder = FrameDecoder(None, options.max_frame_size)
    opening = Opening(address, options, runtime, decoder, topic=topic, channel=channel)
    streams: list[Stream] = []
    opening.run(streams.append, min(options.connect_timeout, timeout))
    streams[0].close()
