"""I/O: the stream and connection to one nsqd, and the HTTP clients."""
