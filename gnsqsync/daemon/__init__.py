"""What NSQ's daemons share: flags, config files, log lines, names, HTTP as Go serves it.

No daemon, no gevent, no socket.
"""
