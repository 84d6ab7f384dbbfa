"""Decisions without I/O: which nsqd gets how much RDY, when to back off, which one to dial."""
