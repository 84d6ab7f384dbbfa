"""gnsqsync.flask: the extension in this process, its commands and its guide as processes."""
