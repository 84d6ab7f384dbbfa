"""The whole link counter, with an nsqd, a database and ports of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from demonstration import demonstration

LINKS = Path(__file__).parents[1] / "link_counter" / "links"
FLASK = (sys.executable, "-m", "flask", "--app", str(LINKS))


def main() -> None:
    with demonstration("Run the site, the consumer and nsqd until Ctrl-C.") as demo:
        demo.environment.update(
            FLASK_DATABASE=str(demo.data / "links.sqlite3"),
            FLASK_NSQ_NSQD_ADDRESSES=f"127.0.0.1:{demo.nsqd_port}",
            FLASK_NSQ_NSQD_HTTP_ADDRESSES=f"127.0.0.1:{demo.nsqd_http_port}",
        )
        demo.run(*FLASK, "init-db")
        demo.start_nsqd()
        demo.start(*FLASK, "nsq", "consume")
        demo.start(*FLASK, "run", "--port", str(demo.port))
        demo.wait_for_ctrl_c("The counter")


if __name__ == "__main__":
    main()
