"""Pictures of moving RDY, of backoff and of a stop, drawn from runs on embedded nsqds.

``python -m tests.support.behaviour_pictures FOLDER`` takes half a minute and writes each picture
twice, light and dark. Needs matplotlib (extra ``bench``).
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from gnsqsync import Message, NsqdHTTP, Reader, Writer
from gnsqsync.embedded import Nsqd
from gnsqsync.stats import ReaderStats

TOPIC, CHANNEL = "orders", "billing"
# Colours of text, of the grid, and of three lines that people with any colour vision distinguish.
SCHEMES = {
    "": ("#333333", "#DDDDDD", ("#0072B2", "#D55E00", "#009E73")),
    "-dark": ("#CCCCCC", "#444444", ("#56B4E9", "#E69F00", "#3FC79A")),
}

Samples = list[tuple[float, float]]


class Picture(NamedTuple):
    """Lines by name, each a list of (seconds, value), and moments that are marked with a text."""

    title: str
    unit: str
    lines: dict[str, Samples]
    moments: dict[str, float]


def sample(
    reader: Reader, seconds: float, step: float = 0.02
) -> Iterator[tuple[float, ReaderStats]]:
    """Yield (seconds, statistics) of a Reader at every step."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        yield now, reader.stats()
        time.sleep(step)


def rdy() -> Picture:
    """Draw the RDY of three nsqds that run out of messages one after the other."""
    lines: dict[str, Samples] = defaultdict(list)
    with ExitStack() as stack:
        nsqds = [stack.enter_context(Nsqd()) for _ in range(3)]
        names = {}
        for number, (nsqd, messages) in enumerate(zip(nsqds, (1000, 4000, 20_000), strict=True)):
            names[nsqd.tcp_address] = f"nsqd {number + 1}, {messages:,} messages"
            _create(nsqd)
            with Writer(nsqd.tcp_address) as writer:
                writer.publish_many(TOPIC, [b"x"] * messages)
        reader = Reader(
            TOPIC,
            CHANNEL,
            lambda message: time.sleep(0.002),
            nsqd_tcp_addresses=list(names),
            max_in_flight=90,
            concurrency=4,
            low_rdy_idle_timeout=1.0,
            latency="throughput",
        )
        reader.start(block=False)
        for now, stats in sample(reader, 10.0):
            for connection in stats.connections:
                lines[names[connection.address]].append((now, connection.rdy))
        reader.stop()
        reader.join()
    return Picture(
        "max_in_flight 90, shared by three nsqds", "RDY", dict(sorted(lines.items())), {}
    )


def backoff() -> Picture:
    """Draw the backoff of a handler that fails for 6.5 seconds while messages keep coming."""
    began = time.monotonic()
    # The test after the second pause fails, too, however long chance makes the pauses.
    fails = (2.0, 8.5)

    def handle(message: Message) -> None:
        if fails[0] <= time.monotonic() - began < fails[1]:
            raise RuntimeError("the database is down")

    levels: Samples = []
    waiting: Samples = []
    with ExitStack() as stack:
        nsqd = stack.enter_context(Nsqd())
        _create(nsqd)
        reader = Reader(
            TOPIC,
            CHANNEL,
            handle,
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_in_flight=20,
            max_attempts=0,
            requeue_delay=0.5,
        )
        writer = stack.enter_context(Writer(nsqd.tcp_address))
        ended = threading.Event()
        publisher = threading.Thread(target=_publish, args=(writer, ended))
        publisher.start()
        began = time.monotonic()
        reader.start(block=False)
        for now, stats in sample(reader, 20.0):
            levels.append((now, stats.backoff_level))
            waiting.append((now, (writer.stats().published - stats.finished) / 100))
        ended.set()
        publisher.join()
        reader.stop()
        reader.join()
    return Picture(
        "100 messages a second; the handler fails from second 2 to 8.5",
        "level; hundreds of messages",
        {"not finished yet, hundreds": waiting, "level of backoff": levels},
        {"fails": fails[0], "works again": fails[1]},
    )


def stop() -> Picture:
    """Draw a stop while handlers run."""
    running = 0
    lock = threading.Lock()

    def handle(message: Message) -> None:
        nonlocal running
        with lock:
            running += 1
        time.sleep(0.6)
        with lock:
            running -= 1

    in_flight: Samples = []
    at_work: Samples = []
    with Nsqd() as nsqd:
        _create(nsqd)
        with Writer(nsqd.tcp_address) as writer:
            writer.publish_many(TOPIC, [b"x"] * 400)
        reader = Reader(
            TOPIC,
            CHANNEL,
            handle,
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_in_flight=20,
            concurrency=4,
        )
        reader.start(block=False)
        timer = threading.Timer(1.5, reader.stop)
        timer.start()
        for now, stats in sample(reader, 3.0, 0.005):
            in_flight.append((now, stats.in_flight))
            at_work.append((now, running))
        reader.join()
    return Picture(
        "max_in_flight 20, four handlers of 0.6 s each",
        "messages",
        {"in flight": in_flight, "with a handler": at_work},
        {"stop()": 1.5},
    )


PICTURES: dict[str, Callable[[], Picture]] = {"rdy": rdy, "backoff": backoff, "stop": stop}


def _create(nsqd: Nsqd) -> None:
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic(TOPIC)
        http.create_channel(TOPIC, CHANNEL)


def _publish(writer: Writer, ended: threading.Event) -> None:
    while not ended.wait(0.01):
        writer.publish(TOPIC, b"x")


def draw(picture: Picture, scheme: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink, grid, colours = SCHEMES[scheme]
    settings: dict[str, Any] = {
        "svg.fonttype": "none",
        # A fixed salt gives the same file for the same samples.
        "svg.hashsalt": path.name,
        "font.size": 10,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": grid,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(7.5, 3), layout="constrained")
        for colour, (name, samples) in zip(colours, picture.lines.items(), strict=False):
            axes.step(*zip(*samples, strict=True), where="post", color=colour, label=name)
        # The legend needs the room above the lines.
        top = 1.35 * axes.get_ylim()[1]
        for text, at in picture.moments.items():
            axes.axvline(at, color=ink, linestyle=":")
            axes.text(at, top, f" {text}", va="top")
        axes.set(title=picture.title, xlabel="seconds", ylabel=picture.unit, ylim=(0, top))
        axes.legend(frameon=False, loc="upper right")
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, run in PICTURES.items():
        picture = run()
        for scheme in SCHEMES:
            draw(picture, scheme, folder / f"{name}{scheme}.svg")


if __name__ == "__main__":
    main()
