"""TCP connection to one nsqd: dial, handshake, read, send, close, and report the loss.

Knows the protocol, one socket and the in-flight table. Must not know how RDY is shared, which
nsqd takes a publish, or a user's handler: the connection tells its owner.

``link`` is what every connection has: a beginning, a state, heartbeats, an end. A
``publishing`` connection and a ``subscribed`` connection are Links. ``opening`` dials, over a
``stream`` of bytes and layers. A ``send_queue`` writes for all threads; ``publish_queue`` and
``answer_queue`` say what. ``messages`` receives for a consumer, ``publishes`` and
``publish_replies`` for a publisher; ``read_turn`` decides which thread may receive. ``joining``
waits for the reading threads of closed connections.

Surprise: the thread that receives is not always the reading thread. A publisher reads its own
answer, and the only worker of a Reader may read its next message, to save a switch of threads.
"""
