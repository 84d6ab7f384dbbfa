"""Everything that a peer can send, thrown at what reads it: ``python -m tests.fuzz --help``."""
