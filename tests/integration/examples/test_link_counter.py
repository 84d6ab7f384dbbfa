"""The link counter, as its page starts it, in a browser."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.applications import Application, running
from tests.support.pages import check_page, follow, submit, text_of
from tests.support.waiting import eventually

# A browser and an application start in the first test.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    with running("link-counter", tmp_path_factory.mktemp("links")) as counter:
        yield counter
        counter.stop(signal.SIGTERM)


def make_link(browser: Chrome, counter: Application, url: str) -> str:
    """Type it and press the button; the link that the page shows then."""
    browser.get(counter.url)
    browser.find_element(By.NAME, "url").send_keys(url)
    submit(browser)
    return str(browser.find_element(By.ID, "short").get_attribute("href"))


def link_by_http(counter: Application) -> str:
    answer = requests.post(counter.url, data={"url": "https://docs.example/"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.url.split("/")[-1]


def click(counter: Application, code: str) -> None:
    answer = requests.get(f"{counter.url}/{code}", timeout=60, allow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (302, "https://docs.example/")


def clicks_of(counter: Application, code: str) -> int:
    text = requests.get(f"{counter.url}/links/{code}", timeout=60).text
    found = re.search(r'id="clicks">(\d+)<', text)
    assert found is not None, text
    return int(found[1])


def test_each_click_is_counted(counter: Application, browser: Chrome) -> None:
    browser.get(counter.url)
    assert "None yet." in text_of(browser)
    check_page(browser)
    target = f"{counter.url}/static/style.css?a=b"
    short = make_link(browser, counter, target)
    page = browser.current_url
    assert text_of(browser, ".count").startswith("0 clicks")
    check_page(browser)
    for _ in range(5):
        browser.get(page)
        follow(browser, By.ID, "short")
        assert browser.current_url == target
    browser.get(page)

    def count_again() -> bool:
        follow(browser, By.LINK_TEXT, "Count again")
        return text_of(browser, ".count").startswith("5 clicks")

    eventually(count_again)
    follow(browser, By.LINK_TEXT, "All links")
    check_page(browser)
    row = text_of(browser, "tbody tr").split()
    assert row == [short.removeprefix(counter.url), target, "5"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "Give the address that the link is to lead to."),
        ("javascript:alert(1)", "The address must begin with http:// or https://."),
        ("https://docs.example:port/", "This is not an address of a page."),
    ],
)
def test_a_bad_address_is_refused(
    counter: Application, browser: Chrome, url: str, sentence: str
) -> None:
    browser.get(counter.url)
    before = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    browser.find_element(By.NAME, "url").send_keys(url)
    submit(browser)
    assert text_of(browser, "[role=alert]") == sentence
    field = browser.switch_to.active_element
    assert (field.get_attribute("name"), field.get_attribute("value")) == ("url", url)
    assert len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) == len(before)
    check_page(browser)


def test_a_link_that_there_is_not(counter: Application, browser: Chrome) -> None:
    browser.get(f"{counter.url}/nothing")
    assert "There is no such link." in text_of(browser)
    check_page(browser)
    follow(browser, By.LINK_TEXT, "Make one")
    assert text_of(browser, "h1") == "A short link that counts"


def test_a_click_while_the_consumer_is_killed(counter: Application) -> None:
    code = link_by_http(counter)
    path = counter.data / "links.sqlite3"
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        # The consumer has the message, and waits until it may write.
        database.execute("BEGIN IMMEDIATE")
        click(counter, code)
        eventually(lambda: sum(c.in_flight_count for c in counter.topic("clicks").channels))
        counter.kill_part("consume")
        database.execute("ROLLBACK")
    eventually(lambda: clicks_of(counter, code) == 1)


def test_a_link_leads_on_while_nsqd_is_away(counter: Application) -> None:
    code = link_by_http(counter)
    with counter.frozen("gnsqsync.cli"):
        click(counter, code)
    counter.wait_for(f"a click on {code} is not counted")
    os.kill(counter.part("gnsqsync.cli"), signal.SIGKILL)
    # The next nsqd is at the same address; clicks count again.
    before = clicks_of(counter, code)

    def counted() -> bool:
        click(counter, code)
        return clicks_of(counter, code) > before

    eventually(counted)


def test_ctrl_c(tmp_path: Path) -> None:
    with running("link-counter", tmp_path) as counter:
        click(counter, link_by_http(counter))
        counter.stop(signal.SIGINT)
