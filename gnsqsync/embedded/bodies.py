"""A reader of MPUB bodies piece by piece, for TCP and HTTP alike. No I/O
(docs/protocol/publishing#publish)."""

from __future__ import annotations

from gnsqsync.embedded.identify import Fatal
from gnsqsync.embedded.numbers import signed_int

__all__ = ["MpubBody"]


class MpubBody:
    """A parser of ``[count]{[size][bytes]}...`` that is fed in pieces.

    ``bodies`` has the bodies read so far. ``done`` is True after the last one. ``missing`` is the
    error if the input ends now. The bodies together have at most ``max_body_size`` bytes. nsqd does
    not check the sum: it stores what count and sizes allow, a terabyte by default.
    """

    __slots__ = ("_count", "_left", "_max_count", "_max_msg_size", "bodies", "missing", "needs")

    def __init__(self, max_msg_size: int, max_body_size: int) -> None:
        self.bodies: list[bytes] = []
        self.missing: Fatal = Fatal(b"E_BAD_BODY", b"MPUB failed to read message count")
        # Bytes of the next piece: a number, or a size with its body.
        self.needs: int = 4
        self._count = -1
        self._max_msg_size = max_msg_size
        self._max_count = (max_body_size - 4) // 5
        self._left = max_body_size

    @property
    def done(self) -> bool:
        return len(self.bodies) == self._count

    def read(self, data: bytes, offset: int) -> int:
        """Take the whole pieces in ``data`` from ``offset`` on. Return the offset after them.

        Raises Fatal for a bad count or size.
        """
        end = len(data)
        bodies = self.bodies
        if self._count < 0:
            if end - offset < 4:
                return offset
            count = signed_int(data, offset)
            if not 0 < count <= self._max_count:
                raise Fatal(b"E_BAD_BODY", b"MPUB invalid message count %d" % count)
            self._count = count
            offset += 4
        while len(bodies) < self._count:
            index = len(bodies)
            if end - offset < 4:
                self.needs = 4
                text = b"MPUB failed to read message(%d) body size" % index
                self.missing = Fatal(b"E_BAD_MESSAGE", text)
                break
            size = signed_int(data, offset)
            if size <= 0:
                text = b"MPUB invalid message(%d) body size %d" % (index, size)
                raise Fatal(b"E_BAD_MESSAGE", text)
            if size > self._max_msg_size:
                text = b"MPUB message too big %d > %d" % (size, self._max_msg_size)
                raise Fatal(b"E_BAD_MESSAGE", text)
            if size > self._left:
                raise Fatal(b"E_BAD_BODY", b"MPUB body too big")
            stop = offset + 4 + size
            if stop > end:
                self.needs = 4 + size
                self.missing = Fatal(b"E_BAD_MESSAGE", b"MPUB failed to read message body")
                break
            bodies.append(data[offset + 4 : stop])
            self._left -= size
            offset = stop
        return offset
