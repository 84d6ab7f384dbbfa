"""A worker of Spark that connects to its JVM first, and imports PySpark then.

A JVM gives a worker of a streaming source, or of the plan of a read, 10 s from the start of its
process to its connection ("Python worker failed to connect back"). No setting changes that. PySpark
connects at the end of its imports, which take half a second of a processor, and so longer than 10 s
where twenty processes want one. Arguments: those of ``python``, ``-m`` and the module.
"""

from __future__ import annotations

import os
import runpy
import socket
import struct
import sys
from typing import IO, Any

_NAME = "local_connect_and_auth"


def connect() -> tuple[IO[bytes], socket.socket] | None:
    """Return the connection to the JVM, as PySpark makes it, or None if none is asked for."""
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if port is None or secret is None:
        return None
    limit = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", 15))
    connection = socket.create_connection(("127.0.0.1", int(port)), limit)
    stream = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
    words = secret.encode()
    stream.write(struct.pack(">i", len(words)) + words)
    stream.flush()
    (size,) = struct.unpack(">i", stream.read(4))
    answer = stream.read(size)
    if answer != b"ok":
        raise ConnectionError(f"the JVM answers {answer!r} to the secret that it gave")
    return stream, connection


def give(connection: tuple[IO[bytes], socket.socket]) -> None:
    """Have PySpark take the connection where it would make one."""
    import pyspark.util

    made = getattr(pyspark.util, _NAME)

    def take(*_: Any) -> tuple[IO[bytes], socket.socket]:
        return connection

    for module in list(sys.modules.values()):
        if getattr(module, _NAME, None) is made:
            setattr(module, _NAME, take)


def main() -> None:
    flag, module, *rest = sys.argv[1:]
    assert flag == "-m", sys.argv
    # The folder that ``-m`` puts there, and not that of this file.
    sys.path[0] = os.getcwd()
    connection = connect()
    if connection is not None:
        give(connection)
    sys.argv[:] = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
