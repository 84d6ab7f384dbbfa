"""A program that consumes, around its Readers: children, signals, reload, limits, pages, output.

Knows Readers, Writers and the settings of an application. Must not know databases, options of a
command line, Django or Flask.
"""
