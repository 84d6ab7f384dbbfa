"""nsqadmin below a path of a real nginx, which keeps the path or cuts it off, as the guide shows.

Without nginx the tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urljoin

import pytest
import requests

from gnsqsync import NsqdHTTP
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support.ports import free_ports
from tests.support.servers import Server
from tests.support.waiting import eventually

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx: apt-get install nginx-light")

WAYS = ("kept", "cut off")
# The locations are those of docs/guides/nsqadmin; nginx names the user, as --admin-user needs.
CONFIG = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    proxy_set_header X-Forwarded-User ann;
    server {{
        listen 127.0.0.1:{kept};
        location /nsq/ {{ proxy_pass http://127.0.0.1:{admin}; }}
    }}
    server {{
        listen 127.0.0.1:{cut};
        location /nsq/ {{ proxy_pass http://127.0.0.1:{admin}/; }}
    }}
}}
"""


class Site:
    """The URL of nginx for each way, and the HTTP API of the nsqd behind nsqadmin."""

    def __init__(self, ports: dict[str, int], nsqd: NsqdHTTP) -> None:
        self.urls = {way: f"http://127.0.0.1:{port}" for way, port in ports.items()}
        self.nsqd = nsqd


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("nginx")
    # Worker processes of an nginx that root starts belong to another user.
    folder.chmod(0o755)
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        server = stack.enter_context(
            Nsqd(lookupd_tcp_addresses=lookupd.tcp_address, broadcast_address="127.0.0.1")
        )
        nsqd = stack.enter_context(NsqdHTTP(server.http_address))
        nsqd.create_topic("orders")
        nsqd.create_channel("orders", "archive")
        # A path with dots is shorter behind a browser and behind nginx.
        nsqd.create_topic("..")
        nsqd.create_channel("..", "audit#ephemeral")
        flags = [
            f"-lookupd-http-address={lookupd.http_address}",
            "-base-path=/nsq",
            "-admin-user=ann",
            "-acl-http-header=X-Forwarded-User",
        ]
        admin = Server("embedded", "nsqadmin", flags)
        stack.callback(admin.discard)
        admin.start()
        # nginx cannot tell a port that it chose.
        ports = dict(zip(WAYS, stack.enter_context(free_ports(len(WAYS))), strict=True))
        config = folder / "nginx.conf"
        config.write_text(
            CONFIG.format(
                folder=folder,
                admin=admin.http_address[1],
                kept=ports["kept"],
                cut=ports["cut off"],
            )
        )
        nginx = stack.enter_context(_running(config))
        eventually(lambda: nginx.poll() is not None or all(map(_listens, ports.values())))
        assert nginx.poll() is None, (folder / "log").read_text()
        yield Site(ports, nsqd)


class _running:
    """An nginx, from here to the end of the block."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def __enter__(self) -> subprocess.Popen[bytes]:
        with (self._config.parent / "log").open("wb") as log:
            words = [str(NGINX), "-c", str(self._config), "-p", str(self._config.parent)]
            self._process = subprocess.Popen(words, stderr=log)
        return self._process

    def __exit__(self, *raised: object) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest, site: Site) -> str:
    way: str = request.param
    return site.urls[way]


def test_every_link_leads_to_a_page(url: str) -> None:
    """Pages, static files and redirects; none leads outside of the path, or in a circle."""
    seen: dict[str, str] = {}
    waiting = ["/nsq/"]
    with requests.Session() as browser:
        assert browser.get(f"{url}/nsq", timeout=20).url == f"{url}/nsq/"
        while waiting:
            path = waiting.pop()
            answer = browser.get(url + path, timeout=20)
            assert (answer.status_code, answer.history) == (200, []), path
            seen[path] = answer.headers["Content-Type"]
            links = re.findall(r'(?:href|src|action|data-events)="([^"#]+)"', answer.text)
            meant = {urljoin(path, link.replace("&amp;", "&")) for link in links}
            assert all(link == "/nsq" or link.startswith("/nsq/") for link in meant), meant
            # A form wants a POST, and the events of a watch have no end.
            meant -= {"/nsq/do", "/nsq", *seen, *waiting}
            waiting += sorted(link for link in meant if "/events" not in link)
        assert (
            browser.get(f"{url}/nsq/topics/orders/", timeout=20).url == f"{url}/nsq/topics/orders"
        )
    assert seen["/nsq/topics/orders/archive"] == "text/html; charset=utf-8"
    assert "javascript" in seen["/nsq/static/main.js"]
    assert {"/nsq/publish/orders", "/nsq/nodes", "/nsq/watch/orders"} <= seen.keys()
    assert "/nsq/topics/%252E%252E/audit%23ephemeral" in seen


def test_missing_page_is_that_of_nsqadmin(url: str) -> None:
    answer = requests.get(f"{url}/nsq/topics/order", headers={"Accept": "text/html"}, timeout=20)
    assert answer.status_code == 404
    assert '<a href="/nsq/topics/orders">' in answer.text
    assert "nginx" not in answer.text


def test_actions_and_their_question(url: str, site: Site) -> None:
    with requests.Session() as browser:
        for verb, paused in (("pause", True), ("unpause", False)):
            asked = browser.get(f"{url}/nsq/confirm?verb={verb}&topic=orders", timeout=20)
            token = re.search('name="token" value="([0-9a-f]+)"', asked.text)
            assert token is not None
            form = {"token": token[1], "verb": verb, "topic": "orders"}
            sent = f"{url}/nsq/do"
            foreign = browser.post(
                sent, form, headers={"Origin": "http://evil.example"}, timeout=20
            )
            assert foreign.status_code == 403
            # A browser says so of a page's own forms, whatever Host nginx sets.
            own = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
            assert browser.post(sent, form, headers=own, timeout=20).status_code == 200
            assert site.nsqd.stats("orders").topics[0].paused == paused
    api = requests.post(f"{url}/nsq/api/topics/orders", '{"action":"pause"}', timeout=20)
    assert (api.status_code, site.nsqd.stats("orders").topics[0].paused) == (200, True)
    site.nsqd.unpause_topic("orders")


def test_a_watch_is_not_kept_back(url: str, site: Site) -> None:
    """nginx collects an answer before it sends it, unless the answer says otherwise."""
    with requests.get(f"{url}/nsq/watch/orders/events", stream=True, timeout=20) as events:
        assert events.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = events.iter_lines(chunk_size=1, decode_unicode=True)
        assert next(lines) == "event: began"
        site.nsqd.pub("orders", b"a body to see")
        assert any("a body to see" in line for line in lines)
