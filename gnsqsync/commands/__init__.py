"""Commands that the command line, Django and Flask share: their options, work and lines.

Knows what a command does. Must not know Django or Flask. ``letters_click`` and
``options_click`` are for programs that use click.
"""
