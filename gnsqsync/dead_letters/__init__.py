"""Dead letters: tools to look at them, to send them back, and to purge them."""

from __future__ import annotations

from gnsqsync.dead_letters.dead_letters import DeadLetters, Tally
from gnsqsync.dead_letters.letter import DeadLetter, Filter

__all__ = ["DeadLetter", "DeadLetters", "Filter", "Tally"]
