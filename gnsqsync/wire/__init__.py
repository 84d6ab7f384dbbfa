"""Bytes of the protocol: commands, frames, handshake, codecs, JSON. No I/O, clock or threads."""
