"""Keys with different bytes that are alike for people, collations or normal forms."""

from __future__ import annotations

__all__ = ["ALIKE"]

ALIKE = [
    "order-a",
    "Order-A",
    "ORDER-A",
    "order-ä",
    # This is the key before in another normal form of Unicode.
    "order-a\u0308",
    "order-a ",
    "order-a  ",
    " order-a",
    "order-\U0001f600",
    "order-\U0001f680",
    "order-?",
    "straße",
    "strasse",
    "1",
    "01",
    "1.0",
    "1e0",
    # Long keys that differ in the last character.
    "\U0001f680" * 199 + "a",
    "\U0001f680" * 199 + "b",
    "100%",
    "100_",
    "\\",
    "\\\\",
    "'",
    '"',
]
