"""Decisions without I/O: who gets how much RDY, when to back off, which nsqd to dial."""
