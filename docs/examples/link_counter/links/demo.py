"""``flask --app links demo``: all of it, with an nsqd, a database and ports of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from links.processes import Processes, free_port


@click.command("demo")
@click.option("--port", type=int, default=0, help="Of the site. Default: a free one.")
@click.option("--data", metavar="FOLDER", help="Keep database and messages there.")
def demo(port: int, data: str | None) -> None:
    """Run the site, the consumer and an embedded nsqd until Ctrl-C.

    Database and messages are in a temporary folder.
    """
    try:
        with ExitStack() as stack:
            folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="links-"))
            run(Path(folder).resolve(), port or free_port())
    except subprocess.CalledProcessError as error:
        raise click.ClickException(str(error)) from None


def run(data: Path, port: int) -> None:
    flask = (sys.executable, "-m", "flask", "--app", str(Path(__file__).parent))
    tcp_port, http_port = free_port(), free_port()
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "FLASK_DATABASE": str(data / "links.sqlite3"),
        "FLASK_NSQ_NSQD_ADDRESSES": f"127.0.0.1:{tcp_port}",
        "FLASK_NSQ_NSQD_HTTP_ADDRESSES": f"127.0.0.1:{http_port}",
    }
    (data / "nsqd").mkdir(parents=True, exist_ok=True)
    with Processes(environment) as processes:
        processes.run(*flask, "init-db")
        processes.start(
            *(sys.executable, "-m", "gnsqsync.cli", "nsqd", "--log-level=warn"),
            f"--tcp-address=127.0.0.1:{tcp_port}",
            f"--http-address=127.0.0.1:{http_port}",
            f"--data-path={data / 'nsqd'}",
        )
        processes.wait_for_port(tcp_port)
        processes.start(*flask, "nsq", "consume")
        processes.start(*flask, "run", "--port", str(port))
        processes.wait_for_port(port)
        click.echo(f"The counter is at http://127.0.0.1:{port}/ - Ctrl-C ends it.")
        sys.stdout.flush()
        while processes.wait():
            pass
