"""The parts of a consuming process around its Readers.

Knows signals, child processes, reload, settings, output and the metrics page. Must not know Django,
Flask or the command line, which use these parts.
"""
