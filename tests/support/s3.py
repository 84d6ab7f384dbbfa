"""An S3 server for tests, moto's, in a process of its own.

Knows its start, and the options of s3fs for it. Needs the packages moto and s3fs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

BUCKET = "bucket"
_STARTS = 60.0

# Requests are served one after the other. Otherwise moto accepts a second create of an object
# between its check and its write.
_SERVER = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

run_simple("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@dataclass(frozen=True)
class S3:
    """A running server with the bucket BUCKET."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """Options for s3fs."""
        return {
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a user gives the same to a process."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def running(folder: Path) -> Iterator[S3]:
    """Run a server until the end of the block. Its log is in ``folder``."""
    from gnsqsync.spark.object_store import ObjectStore
    from gnsqsync.spark.open_store import open_store

    log_path = folder / "moto.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=log, stderr=log)
    try:
        found = eventually(
            lambda: re.search(r"Running on (http://127\.0\.0\.1:\d+)", log_path.read_text()),
            _STARTS,
            describe=log_path.read_text,
        )
        assert found is not None
        server = S3(found[1])
        store = open_store(f"s3://{BUCKET}/x", server.options)
        assert isinstance(store, ObjectStore)
        store._fs.call_s3("create_bucket", Bucket=BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()
