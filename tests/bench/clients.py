"""The clients beside each other: what each can do, and how it is started. Makes nothing ready."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rows import Row

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent

ALL_KINDS = ("publish", "publish_many", "consume", "latency")
ALL_TRANSPORTS = ("", "snappy", "deflate", "tls")


@dataclass(frozen=True)
class Client:
    """One column of ratios. ``packages`` are exact pins; without any, this Python runs it.

    ``go`` names programs to build with Go. ``distributions`` must be importable here.
    ``only``: the rows it can do at all, when it is less than its kinds and transports say;
    ``python``: the least version that it runs on, when that is more than ours;
    ``default``: measured when no client is named.
    """

    name: str
    runner: str
    packages: tuple[str, ...] = ()
    go: tuple[str, ...] = ()
    flavour: str = ""
    kinds: tuple[str, ...] = ALL_KINDS
    transports: tuple[str, ...] = ALL_TRANSPORTS
    only: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    default: bool = True
    in_quick: bool = True

    @property
    def is_python(self) -> bool:
        return self.runner.endswith(".py") and not self.go

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("ours")

    @property
    def script(self) -> Path:
        return HERE / "runners" / self.runner

    def can(self, row: Row) -> bool:
        """Whether it has what the row asks for; a row that it cannot do is not tried."""
        return (
            row.kind in self.kinds
            and row.transport in self.transports
            and (not self.only or row.name in self.only)
            and (row.collect or self.is_python)
            and (row.name != "latency-2500" or not self.packages)
        )

    def does(self, row: Row, layout: str) -> bool:
        """Whether it is measured there when both layouts are; the slowest are so once only."""
        return layout == "pinned" or row.kind == "latency" or self.name not in ("pynsq", "nsq-py")

    def environment(self) -> dict[str, str]:
        """What the child sees: ours is taken from this checkout, peers never see it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        if self.is_ours:
            env["PYTHONPATH"] = str(REPOSITORY)
        return env


# gnsq 1.0.2 needs nothing beyond a current gevent and blinker, pynsq 0.9.1 needs a tornado that
# it may ask for the running loop; nsq-py runs on Python 3, but its TLS, Snappy and DEFLATE do
# not. What pip would choose is pinned too, so that a ratio is not moved by a release of
# something else.
CLIENTS = (
    Client("ours", "ours.py", flavour="threads"),
    Client("ours-gevent", "ours.py", flavour="gevent"),
    Client("floor", "floor.py", flavour="auto"),
    Client("floor-gevent", "floor_gevent.py", transports=("",)),
    Client("floor-real", "floor.py", flavour="real", kinds=("consume",), default=False),
    Client(
        "gnsq",
        "gnsq_.py",
        (
            "gnsq==1.0.2",
            "gevent==26.9.0",
            "greenlet==3.5.6",
            "blinker==1.9.0",
            "six==1.17.0",
            "urllib3==2.8.0",
            "zope.event==6.2",
            "zope.interface==8.7",
            "python-snappy==0.7.3",
        ),
    ),
    Client("pynsq", "pynsq_.py", ("pynsq==0.9.1", "tornado==6.6.1", "python-snappy==0.7.3")),
    Client(
        "nsq-py",
        "nsqpy.py",
        (
            "nsq-py==0.1.12",
            "requests==2.34.2",
            "certifi==2026.10.18",
            "charset-normalizer==3.5.2",
            "idna==3.20",
            "urllib3==2.8.0",
            "decorator==5.3.1",
            "six==1.17.0",
            "statsd==4.0.1",
        ),
        transports=("",),
    ),
    # The clients for asyncio. Their pace is measured when they are named.
    Client(
        "asyncnsq",
        "asyncnsq_.py",
        (
            "asyncnsq==2.0.1",
            "python-snappy==0.7.3",
            "cramjam==2.14.0",
            "httpx==0.28.1",
            "httpcore==1.0.9",
            "h11==0.16.0",
            "anyio==4.16.0",
            "certifi==2026.10.18",
            "idna==3.20",
        ),
        transports=("",),
        python=(3, 12),
        default=False,
    ),
    Client(
        "ansq",
        "ansq_.py",
        (
            "ansq==0.3.0",
            "aiohttp==3.14.5",
            "aiohappyeyeballs==2.7.1",
            "aiosignal==1.4.0",
            "attrs==26.1.0",
            "frozenlist==1.8.0",
            "multidict==7.2.1",
            "propcache==0.5.4",
            "yarl==1.25.1",
            "idna==3.20",
        ),
        only=("publish-1", "publish-16", "publish-many", "consume-1"),
        default=False,
    ),
    Client("go-nsq", "gonsq", go=("gonsq",)),
    # nsq's own bench_reader and bench_writer: the protocol by hand in Go, no client at all.
    Client(
        "nsq-bench",
        "nsqbench.py",
        go=("bench_reader", "bench_writer"),
        only=("publish-many", "consume-2500"),
        in_quick=False,
    ),
)


def select(names: Sequence[str], quick: bool = False) -> tuple[Client, ...]:
    """The clients with these names, in the order of the table; ValueError for an unknown one."""
    known = {client.name for client in CLIENTS}
    for name in names:
        if name not in known:
            raise ValueError(f"no client is called {name}; there are {', '.join(sorted(known))}")
    if names:
        return tuple(client for client in CLIENTS if client.name in names)
    return tuple(c for c in CLIENTS if c.default and (c.in_quick or not quick))
