"""A disk that takes its time for nsqd.dat holds up nobody."""

from __future__ import annotations

from pathlib import Path

from tests.support.interpreter import run_script


def test_clients_go_on_while_names_are_written(tmp_path: Path) -> None:
    """In a process of its own, since gevent runs there."""
    out = run_script(f"""
        import io
        import threading
        from gevent import socket
        from gnsqsync import durable
        from gnsqsync.daemon.golog import Log
        from gnsqsync.embedded.options import NsqdOptions
        from gnsqsync.embedded.server import NsqdServer
        addresses = dict(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
        options = NsqdOptions(data_path={str(tmp_path)!r}, **addresses)
        server = NsqdServer(options, Log("", "error", io.StringIO()))
        server.start()
        writes, write, goes_on = [], durable.write, threading.Event()
        def slow(*args):
            writes.append(args[1])
            assert goes_on.wait(60)
            write(*args)
        durable.write = slow
        with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=20) as sock:
            sock.sendall(b"  V2")
            for topic in b"one", b"two":
                sock.sendall(b"PUB " + topic + b"\\n\\0\\0\\0\\1x")
                print(sock.recv(100)[-2:])
        goes_on.set()
        server.stop()
        print(len(writes), [b'"two"' in text for text in writes])
    """)
    assert out.splitlines() == ["b'OK'", "b'OK'", "3 [False, True, True]"]
