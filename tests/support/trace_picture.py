"""The picture of a trace over three processes: publish, handler, publish, handler.

python -m tests.support.trace_picture docs/guides/trace.svg  # and trace-dark.svg
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.sax.saxutils import escape

from gnsqsync.embedded import Nsqd

# The begin of each program, a process of its own. Its exporter writes a line for each span.
COMMON = """
import json, sys, time
from gnsqsync import Reader, Writer
from gnsqsync.contrib.opentelemetry import OpenTelemetry
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

address, path, process = sys.argv[1:]

class Lines(SpanExporter):
    def export(self, spans):
        with open(path, "a") as file:
            for span in spans:
                file.write(json.dumps({
                    "name": span.name, "process": process, "start": span.start_time,
                    "end": span.end_time, "id": span.context.span_id,
                    "trace": span.context.trace_id,
                    "parent": span.parent and span.parent.span_id}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
around = {"headers": True, "middleware": [OpenTelemetry(tracer_provider=provider)]}
"""
PROGRAMS = {
    "mail": """
def send(message):
    time.sleep(0.004)
    reader.stop()

reader = Reader("paid", "mail", send, nsqd_tcp_addresses=address, **around)
reader.ensure_channel()
print("ready", flush=True)
reader.start()
""",
    "billing": """
writer = Writer(address, **around)

def bill(message):
    time.sleep(0.006)
    writer.publish("paid", message.body)
    time.sleep(0.001)
    reader.stop()

reader = Reader("orders", "billing", bill, nsqd_tcp_addresses=address, **around)
reader.ensure_channel()
print("ready", flush=True)
reader.start()
writer.close()
""",
    "shop": """
writer = Writer(address, **around)
writer.connect()
with provider.get_tracer("shop").start_as_current_span("POST /orders"):
    time.sleep(0.002)
    writer.publish("orders", b"7")
    time.sleep(0.001)
writer.close()
""",
}
# Colour of the text by the end of the picture's name.
SCHEMES = {"": "#222222", "-dark": "#DDDDDD"}
COLOURS = {"shop": "#4c78a8", "billing": "#f58518", "mail": "#54a24b"}


def spans() -> list[dict[str, Any]]:
    """Return the spans of one message's way, ordered by their begin."""
    with TemporaryDirectory() as folder, Nsqd() as nsqd:
        path = Path(folder) / "spans"
        running = []
        for name, program in PROGRAMS.items():
            command = [sys.executable, "-c", COMMON + program, nsqd.tcp_address, str(path), name]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            running.append(process)
            if name != "shop" and process.stdout is not None:
                assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.wait(60) == 0
        found = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda span: span["start"])


def draw(found: list[dict[str, Any]], ink: str) -> str:
    """Return a picture of the spans as bars over time, a line each."""
    begin = min(span["start"] for span in found)
    width = max(span["end"] for span in found) - begin
    lines = []
    for number, span in enumerate(found):
        x = 200 + 620 * (span["start"] - begin) / width
        w = max(2.0, 620 * (span["end"] - span["start"]) / width)
        y = 30 + 34 * number
        milliseconds = (span["end"] - span["start"]) / 1e6
        lines.append(
            f'<text x="10" y="{y + 16}">{escape(span["process"])}: {escape(span["name"])}</text>'
            f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="22"'
            f' fill="{COLOURS[span["process"]]}"/>'
            f'<text x="{min(x + w + 4, 820):.1f}" y="{y + 16}">{milliseconds:.1f} ms</text>'
        )
    height = 50 + 34 * len(found)
    traces = len({span["trace"] for span in found})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" width="900"'
        f' font-family="sans-serif" font-size="12" fill="{ink}">'
        f'<text x="10" y="18">{traces} trace, {len(PROGRAMS)} processes,'
        f" {width / 1e6:.1f} ms</text>{''.join(lines)}</svg>\n"
    )


def main() -> None:
    found = spans()
    path = Path(sys.argv[1])
    for end, ink in SCHEMES.items():
        path.with_stem(path.stem + end).write_text(draw(found, ink))
    for span in found:
        print(span["process"], span["name"], f"{(span['end'] - span['start']) / 1e6:.1f} ms")


if __name__ == "__main__":
    main()
