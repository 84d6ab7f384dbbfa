"""What a start loads: modules, which are counted, and not seconds.

A module too many costs every process that starts, and each is half a millisecond. A test that fails
here asks: is this needed to publish, or only by what some users do?
"""

from __future__ import annotations

import json

import pytest

from tests.support.interpreter import run_script

# What is loaded, and the most modules of ours and of Python's library that it may add.
STARTS = {
    "import gnsqsync": (2, 8),
    "from gnsqsync import Writer": (66, 56),
    "from gnsqsync import Reader": (112, 62),
    "import gnsqsync.cli.app": (12, 60),
}
# Needed for other things: greenlets, HTTP, Snappy, coroutines, child processes.
HEAVY = {
    "asyncio",
    "email",
    "gevent",
    "http",
    "multiprocessing",
    "requests",
    "rich",
    "snappy",
    "urllib3",
}

LOADED = """
    import json, sys
    before = set(sys.modules)
    {start}
    print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("start", STARTS)
def test_modules_that_an_import_loads(start: str) -> None:
    loaded: list[str] = json.loads(run_script(LOADED.format(start=start)))
    tops = {name: name.partition(".")[0] for name in loaded}
    assert not HEAVY & set(tops.values())
    ours = [name for name, top in tops.items() if top == "gnsqsync"]
    theirs = [name for name, top in tops.items() if top not in ("gnsqsync", "click")]
    most_of_ours, most_of_theirs = STARTS[start]
    assert len(ours) <= most_of_ours, ours
    assert len(theirs) <= most_of_theirs, theirs


def test_a_publish_on_threads_loads_no_greenlets() -> None:
    run_script(
        """
        import subprocess, sys
        from gnsqsync import Reader, Writer

        server = subprocess.Popen(
            [sys.executable, "-c",
             "from gnsqsync.embedded import Nsqd\\n"
             "with Nsqd() as nsqd:\\n"
             "    print(nsqd.tcp_address, flush=True)\\n"
             "    input()\\n"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address = server.stdout.readline().strip()
        with Writer(address) as writer:
            writer.publish("startup", b"x")
        reader = Reader("startup", "ch", nsqd_tcp_addresses=address)
        for message in reader:
            message.finish()
            reader.stop()
        reader.join(20)
        server.communicate("\\n")
        assert not [name for name in ("gevent", "asyncio", "requests") if name in sys.modules]
        """,
    )
