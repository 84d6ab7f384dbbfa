"""The pictures of docs/examples and of nsqadmin: ``python -m tests.support.screenshots``.

Needs Chromium.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import requests
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.applications import running
from tests.support.browser import open_browser, show_as
from tests.support.nsqadmin_site import nsqadmin_site
from tests.support.pages import text_of
from tests.support.texts import DOCS
from tests.support.waiting import eventually

PICTURES = DOCS / "_static"
LINKS = (
    "https://nsq.io/overview/internals.html",
    "https://docs.djangoproject.com/en/5.2/topics/db/transactions/",
    "https://flask.palletsprojects.com/en/stable/extensiondev/",
)
CLICKS = (12, 3, 40)


def picture(browser: Chrome, name: str, height: int) -> None:
    show_as(browser, 800, height)
    browser.save_screenshot(str(PICTURES / f"{name}.png"))


def submit(browser: Chrome, **fields: str) -> None:
    for name, text in fields.items():
        browser.find_element(By.NAME, name).clear()
        browser.find_element(By.NAME, name).send_keys(text)
    browser.find_element(By.CSS_SELECTOR, "button[type=submit]").click()


def shop(browser: Chrome, folder: Path) -> None:
    with running("shop", folder) as application:
        browser.get(application.url)
        browser.get(f"{application.url}/products/teapot/")
        submit(browser, quantity="2", name="Ann Otter", email="ann@mail.example")
        eventually(lambda: browser.find_elements(By.CSS_SELECTOR, ".confirmed"))
        picture(browser, "shop-order", 640)


def link_counter(browser: Chrome, folder: Path) -> None:
    with running("link-counter", folder) as application:
        for url, clicks in zip(LINKS, CLICKS, strict=True):
            browser.get(application.url)
            submit(browser, url=url)
            short = browser.find_element(By.ID, "short").get_attribute("href")
            for _ in range(clicks):
                requests.get(str(short), timeout=30, allow_redirects=False)

        def counted() -> bool:
            browser.get(application.url)
            cells = browser.find_elements(By.CSS_SELECTOR, "td.number")
            return [cell.text for cell in cells] == [str(count) for count in reversed(CLICKS)]

        eventually(counted)
        picture(browser, "link-counter", 660)


NSQADMIN = {
    "topics": "/",
    "topic": "/topics/orders",
    "channel": "/topics/orders/archive",
    "watch": "/watch/orders",
    "nodes": "/nodes",
    "node": "",
    "counter": "/counter",
    "lookup": "/lookup",
    "publish": "/publish/orders",
    "confirm": "/confirm?verb=delete&topic=orders",
    "send-back": "/send-back?topic=orders-dead&to=orders&of=archive",
}


def nsqadmin(browser: Chrome) -> None:
    """Take each page on a wide screen, light, and on a phone, dark."""
    with nsqadmin_site() as site:
        browser.get(site.url)
        # The first page must have rates, and sparklines of waiting messages.
        eventually(lambda: "Rates come" not in text_of(browser) and has_lines(browser))
        for name, path in NSQADMIN.items():
            browser.get(site.url + (path or f"/nodes/{site.nsqds[0]}"))
            if name == "watch":
                eventually(lambda: text_of(browser, "#messages").count("order") > 3)
            for width, dark in ((1400, False), (390, True)):
                webp(browser, f"nsqadmin-{name}-{width}", width, dark=dark)


def has_lines(browser: Chrome) -> bool:
    # A single script reads the points, because the page renews itself.
    points = "return document.querySelector('.spark polyline')?.getAttribute('points') ?? ''"
    return str(browser.execute_script(points)).count(",") > 4


def webp(browser: Chrome, name: str, width: int, *, dark: bool) -> None:
    """Take a small picture, as high as the page, but at most 1,100 pixels."""
    show_as(browser, width, 300, dark=dark)
    high = "return Math.ceil(document.body.getBoundingClientRect().height)"
    show_as(browser, width, min(1100, browser.execute_script(high)), dark=dark)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    found = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 80})
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(found["data"]))


def main() -> None:
    with open_browser() as browser:
        nsqadmin(browser)
        for make in (shop, link_counter):
            with tempfile.TemporaryDirectory() as folder:
                make(browser, Path(folder))


if __name__ == "__main__":
    main()
