"""The whole shop, with an nsqd, a database and ports of its own."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from demonstration import demonstration

MANAGE = (sys.executable, str(Path(__file__).parents[1] / "shop" / "manage.py"))


def main() -> None:
    with demonstration("Run the site, nsq_relay, nsq_consume and nsqd until Ctrl-C.") as demo:
        demo.environment.update(
            DJANGO_RUNSERVER_HIDE_WARNING="true",
            SHOP_DATA=str(demo.data),
            SHOP_NSQD=f"127.0.0.1:{demo.nsqd_port}",
            SHOP_NSQD_HTTP=f"127.0.0.1:{demo.nsqd_http_port}",
            SHOP_SECRET_KEY=secrets.token_urlsafe(50),
        )
        demo.run(*MANAGE, "migrate", "--verbosity=0")
        demo.start_nsqd()
        demo.start(*MANAGE, "nsq_relay", "--interval=0.2")
        demo.start(*MANAGE, "nsq_consume")
        # As in production, but for the server: no pages for debugging.
        site = f"127.0.0.1:{demo.port}"
        demo.start(*MANAGE, "runserver", site, "--noreload", "--insecure")
        demo.wait_for_ctrl_c("The shop")


if __name__ == "__main__":
    main()
