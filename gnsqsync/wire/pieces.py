"""The beginning of what has not arrived whole: of a frame, a compressed chunk, a command.

Knows how much of it there is; must not know what it is.
"""

from __future__ import annotations

__all__ = ["Pieces"]

# Smaller ones are joined as they come. Kept as a list of single bytes, the data of a slow peer
# would take many times its size.
_LEAST_PIECE = 1024


class Pieces:
    """The pieces in ``kept``, as they arrived, and how many bytes are ``need``ed before the next
    look.

    They are joined only then, so that a large frame is not copied again with each of its pieces.
    """

    __slots__ = ("have", "kept", "need")

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.have: int = 0
        self.need: int = 0

    def begin(self, data: bytes) -> None:
        """Keep the first piece. Nothing may be kept before."""
        self.kept.append(data)
        self.have = len(data)

    def add(self, data: bytes) -> bytes | None:
        """One more piece of what was begun; all of them when there are ``need`` bytes."""
        kept = self.kept
        if len(kept[-1]) < _LEAST_PIECE:
            kept[-1] += data
        else:
            kept.append(data)
        self.have += len(data)
        return self.take() if self.have >= self.need else None

    def take(self) -> bytes:
        """All that is kept, which is forgotten here."""
        data = b"".join(self.kept)
        self.kept = []
        return data
