"""The pictures of docs/examples: ``python -m tests.support.screenshots``, which needs Chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

import requests
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.applications import running
from tests.support.browser import open_browser, show_as
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


def main() -> None:
    with open_browser() as browser:
        for make in (shop, link_counter):
            with tempfile.TemporaryDirectory() as folder:
                make(browser, Path(folder))


if __name__ == "__main__":
    main()
