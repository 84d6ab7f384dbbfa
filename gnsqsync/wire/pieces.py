"""Beginning of a frame, chunk or command that has not arrived whole.

Knows its length. Must not know what it is.
"""

from __future__ import annotations

__all__ = ["Pieces"]

# Bytes below which a piece is joined to the one before. A list of single bytes from a slow peer
# would take many times their size.
_LEAST_PIECE = 1024


class Pieces:
    """Pieces in ``kept`` as they arrived. ``need`` is the number of bytes for the next look.

    They are joined only then, so that a large frame is not copied again with each of its pieces.
    """

    __slots__ = ("have", "kept", "need")

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.have: int = 0
        self.need: int = 0

    def begin(self, data: bytes) -> None:
        """Keep the first piece. Nothing may be kept before it."""
        self.kept.append(data)
        self.have = len(data)

    def add(self, data: bytes) -> bytes | None:
        """Add a piece. Return all pieces joined once there are ``need`` bytes, else None."""
        kept = self.kept
        if len(kept[-1]) < _LEAST_PIECE:
            kept[-1] += data
        else:
            kept.append(data)
        self.have += len(data)
        return self.take() if self.have >= self.need else None

    def take(self) -> bytes:
        """Return all that is kept, and forget it."""
        data = b"".join(self.kept)
        self.kept = []
        return data
