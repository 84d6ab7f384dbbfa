"""Bytes of the protocol, without I/O, clock or threads: commands, frames, handshake, codecs,
JSON."""
