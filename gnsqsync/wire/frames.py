"""Frames of nsqd as objects, and back to bytes for servers and tests
(docs/protocol/commands#frame-layout and docs/protocol/commands#message-frame).

Must not know what a reply means or who waits for it.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from gnsqsync.errors import ProtocolError, WrongPort
from gnsqsync.message import Message, Responder
from gnsqsync.wire.pieces import Pieces

__all__ = [
    "FRAME_ERROR",
    "FRAME_MESSAGE",
    "FRAME_RESPONSE",
    "FrameDecoder",
    "Reply",
    "encode_error",
    "encode_response",
]

# Types of frames: ``FRAME_RESPONSE``, ``FRAME_ERROR`` and ``FRAME_MESSAGE``.
FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

Reply: TypeAlias = tuple[int, bytes]
"""Frame type (FRAME_RESPONSE or FRAME_ERROR) and data."""

# size, frame type, timestamp, attempts, id. Attempts are unsigned, as they go beyond 32767.
_MESSAGE_HEAD = struct.Struct(">iiqH16s")
# size, frame type.
_HEAD = struct.Struct(">ii")
# Least size of a message frame: type, timestamp, attempts and id.
_MIN_MESSAGE_SIZE = 4 + 26
# Answer to a publish, by far the most frequent frame on a connection that publishes.
_OK_FRAME = _HEAD.pack(6, FRAME_RESPONSE) + b"OK"
# Bytes of that answer.
_OK_SIZE = len(_OK_FRAME)


class FrameDecoder:
    """Decoder of the byte stream of an nsqd: takes chunks of any size, returns whole frames.

    ``responder`` goes into each Message; None if the caller takes none. ``max_frame_size`` (bytes)
    is the largest size field to accept, and about the upper bound of what is buffered. One thread
    at a time may use it.

    ``broken`` is None, or the ProtocolError of the first frame that breaks the rules. Look at it
    after the replies of the same ``feed``. At an upgrade, bytes of the next layer may come with the
    answer and break the rules of this one; ``take_rest`` then heals the decoder.
    """

    __slots__ = ("_max_frame_size", "_pieces", "_responder", "broken")

    def __init__(self, responder: Responder | None, max_frame_size: int) -> None:
        self._responder: Any = responder
        self._max_frame_size = max_frame_size
        self._pieces = Pieces()
        self.broken: ProtocolError | None = None

    def feed(self, data: bytes, received_at: float = 0.0) -> tuple[list[Message], list[Reply]]:
        """Return the messages and replies that ``data`` completes, in the order of arrival.

        Never raises. At a frame that breaks the rules it stops, returns what came before, and sets
        ``broken``. Later data is dropped. ``received_at`` (seconds) goes into the messages. Bodies
        are copies, so they do not keep ``data`` alive.
        """
        messages: list[Message] = []
        replies: list[Reply] = []
        if not data or self.broken is not None:
            return messages, replies
        pieces = self._pieces
        if pieces.kept:
            whole = pieces.add(data)
            if whole is None:
                return messages, replies
            data = whole

        unpack_message_head = _MESSAGE_HEAD.unpack_from
        new = Message.__new__
        responder = self._responder
        max_size = self._max_frame_size
        end = len(data)
        last_head = end - _MESSAGE_HEAD.size
        offset = 0
        while True:
            if offset <= last_head:
                size, kind, timestamp, attempts, id = unpack_message_head(data, offset)
                stop = offset + 4 + size
                if kind == 2 and 30 <= size <= max_size and stop <= end:
                    # Written out, because a call of Message(...) would be 12 % of the cost of
                    # receiving.
                    message = new(Message)
                    message._id = id
                    message.body = data[offset + 34 : stop]
                    message.attempts = attempts
                    message.timestamp = timestamp
                    message._responder = responder
                    message._received_at = message._touched_at = received_at
                    message._status = 0
                    messages.append(message)
                    offset = stop
                    continue
            # Anything but a whole message. The checks look at the bytes in order, so the
            # verdict does not depend on where the stream was cut.
            left = end - offset
            if left < 4:
                pieces.need = 4
                break
            if left < 8:
                pieces.need = 8
                self.broken = self._check_size(data, offset)
                break
            size, kind = _HEAD.unpack_from(data, offset)
            self.broken = self._check_size(data, offset) or _check_kind(data, offset, size, kind)
            pieces.need = 4 + size
            if self.broken is not None or left < pieces.need:
                break
            stop = offset + pieces.need
            replies.append((kind, data[offset + 8 : stop]))
            offset = stop

        if offset < end:
            # Kept even when broken: these may be the first bytes of the next layer.
            pieces.begin(data[offset:])
        return messages, replies

    def count_oks(self, data: bytes) -> int:
        """Return the number of frames if ``data`` is whole frames of OK and nothing else, else 0.

        If it is not 0, ``data`` must not go to ``feed``.
        """
        count = len(data) // _OK_SIZE
        if data != _OK_FRAME * count or self._pieces.kept or self.broken is not None:
            return 0
        return count

    def take_rest(self) -> bytes:
        """Return the buffered bytes after the last whole frame, for the next layer at an upgrade.

        The decoder is then empty and no longer broken.
        """
        self.broken = None
        return self._pieces.take()

    def _check_size(self, data: bytes, offset: int) -> ProtocolError | None:
        head = data[offset : offset + 4]
        size = int.from_bytes(head, "big", signed=True)
        if head == b"HTTP":
            return WrongPort(
                "the answer is HTTP: this is an HTTP port; use nsqd's TCP port (4150 by default)"
            )
        if 4 <= size <= self._max_frame_size:
            return None
        if head[:2] in (b"\x15\x03", b"\x16\x03"):
            return WrongPort(
                "the answer is a TLS record in place of a frame: this is an HTTPS port, or"
                " something in between speaks TLS; use nsqd's TCP port (4150 by default)"
            )
        return ProtocolError(
            f"frame size {size} is not within 4 to {self._max_frame_size} (max_frame_size)"
        )


def _check_kind(data: bytes, offset: int, size: int, kind: int) -> ProtocolError | None:
    if kind in (FRAME_RESPONSE, FRAME_ERROR):
        return None
    if kind == FRAME_MESSAGE:
        if size >= _MIN_MESSAGE_SIZE:
            return None
        return ProtocolError(
            f"message frame of size {size} is shorter than its head ({_MIN_MESSAGE_SIZE})"
        )
    if data[offset + 4 : offset + 8] == b"E_BA":
        # nsqlookupd's V1 has no frame type: its E_BAD_PROTOCOL begins at the place of our type.
        return WrongPort(
            "the answer has no frame type: this is nsqlookupd's TCP port; use nsqd's TCP port"
            " (4150 by default), or give the lookupd's HTTP address (port 4161)"
        )
    return ProtocolError(f"frame type {kind} is not known")


def encode_response(data: bytes) -> bytes:
    """Return a response frame."""
    return _HEAD.pack(4 + len(data), FRAME_RESPONSE) + data


def encode_error(data: bytes) -> bytes:
    """Return an error frame; ``data`` is ``CODE`` or ``CODE description``."""
    return _HEAD.pack(4 + len(data), FRAME_ERROR) + data
