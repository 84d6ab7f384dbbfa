"""Shared parts of NSQ's daemons: flags, config files, log lines, names, HTTP in Go's form.

Knows no daemon, no gevent and no socket.
"""
