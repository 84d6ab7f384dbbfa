"""Waits of messages with clients' defaults, in seconds, beside the goals."""
