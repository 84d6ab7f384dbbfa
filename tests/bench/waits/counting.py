"""A proxy before an nsqd that counts the commands of a client. Works on its own thread."""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections import Counter

_COMMAND = re.compile(rb"(?:^|\n)(RDY|FIN|REQ|NOP|TOUCH|CLS|SUB)\b")
CHUNK = 65536


class CountingProxy:
    """A listening socket for each nsqd; what clients send is counted by command."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._ended, self._end = socket.socketpair()
        self._selector.register(self._ended, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(b"x")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._end.close()
        self._selector.close()

    def before(self, nsqd: tuple[str, int]) -> str:
        """Return the address of a new listening socket whose connections lead to the nsqd."""
        listening = socket.create_server(("127.0.0.1", 0))
        self._selector.register(listening, selectors.EVENT_READ, nsqd)
        return "{}:{}".format(*listening.getsockname())

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if key.data is None:
                    return
                if isinstance(key.data, tuple):
                    self._connect(sock, key.data)
                elif not self._pass_on(sock, *key.data):
                    self._close(sock, key.data[0])

    def _connect(self, listening: socket.socket, nsqd: tuple[str, int]) -> None:
        client, _ = listening.accept()
        server = socket.create_connection(nsqd)
        for sock, other, counted in ((client, server, True), (server, client, False)):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ, [other, counted])

    def _pass_on(self, sock: socket.socket, other: socket.socket, counted: bool) -> bool:
        try:
            data = sock.recv(CHUNK)
            other.sendall(data)
        except OSError:
            return False
        if counted:
            self.counts.update(found.decode() for found in _COMMAND.findall(data))
        return bool(data)

    def _close(self, *ended: socket.socket) -> None:
        for sock in ended:
            if sock.fileno() >= 0:
                self._selector.unregister(sock)
                sock.close()
