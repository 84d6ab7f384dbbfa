"""Writers for the tests of an application: they keep what is published, or run its handlers.

Knows the Writer. Must not know Django or Flask, which hand these Writers out.
"""
