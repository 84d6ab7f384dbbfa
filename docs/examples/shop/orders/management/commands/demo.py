"""``manage.py demo``: the whole shop, with an nsqd, a database and ports of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.core.management.utils import get_random_secret_key

from orders.processes import Processes, free_port


class Command(BaseCommand):
    help = (
        "Run the site, nsq_relay, nsq_consume and an embedded nsqd until Ctrl-C. Database and"
        " messages are in a temporary folder."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--port", type=int, default=0, help="Of the site. Default: a free one.")
        parser.add_argument("--data", metavar="FOLDER", help="Keep database and messages there.")

    def handle(self, **options: Any) -> None:
        try:
            with ExitStack() as stack:
                folder = options["data"] or stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="shop-")
                )
                self._run(Path(folder).resolve(), options["port"] or free_port())
        except subprocess.CalledProcessError as error:
            raise CommandError(str(error)) from None

    def _run(self, data: Path, port: int) -> None:
        manage = (sys.executable, sys.argv[0])
        tcp_port, http_port = free_port(), free_port()
        environment = {
            **os.environ,
            "DJANGO_RUNSERVER_HIDE_WARNING": "true",
            "PYTHONUNBUFFERED": "1",
            "SHOP_DATA": str(data),
            "SHOP_NSQD": f"127.0.0.1:{tcp_port}",
            "SHOP_NSQD_HTTP": f"127.0.0.1:{http_port}",
            "SHOP_SECRET_KEY": get_random_secret_key(),
        }
        (data / "nsqd").mkdir(parents=True, exist_ok=True)
        with Processes(environment) as processes:
            processes.run(*manage, "migrate", "--verbosity=0")
            processes.start(
                *(sys.executable, "-m", "gnsqsync.cli", "nsqd", "--log-level=warn"),
                f"--tcp-address=127.0.0.1:{tcp_port}",
                f"--http-address=127.0.0.1:{http_port}",
                f"--data-path={data / 'nsqd'}",
            )
            processes.wait_for_port(tcp_port)
            processes.start(*manage, "nsq_relay", "--interval=0.2")
            processes.start(*manage, "nsq_consume")
            # As in production, but for the server: no pages for debugging.
            processes.start(*manage, "runserver", f"127.0.0.1:{port}", "--noreload", "--insecure")
            processes.wait_for_port(port)
            self.stdout.write(f"The shop is at http://127.0.0.1:{port}/ - Ctrl-C ends it.")
            self.stdout.flush()
            while processes.wait():
                pass
