"""What a process that consumes needs around its Readers.

Knows signals, child processes, reload, settings, output and the page of metrics. Must not know
Django, Flask or the command line, which are built on it.
"""
