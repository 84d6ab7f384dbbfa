"""nsqadmin's pages in a browser: how they look, what keys and clicks do, what changes by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from gnsqsync import NsqdHTTP
from tests.support.browser import Unavailable, open_browser, show_as
from tests.support.needs import missing
from tests.support.nsqadmin_site import NsqadminSite, nsqadmin_site
from tests.support.pages import ask, check_page, follow, text_of, touch
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    try:
        with open_browser() as browser:
            yield browser
    except Unavailable as error:
        missing(error)


@pytest.fixture(scope="module")
def site() -> Iterator[NsqadminSite]:
    with nsqadmin_site() as site:
        yield site


@pytest.fixture
def nsqds(site: NsqadminSite) -> Iterator[list[NsqdHTTP]]:
    with NsqdHTTP(site.nsqds[0]) as one, NsqdHTTP(site.nsqds[1]) as other:
        yield [one, other]


PAGES = [
    "/",
    "/?q=nothing",
    "/topics/orders",
    "/topics/orders/archive",
    "/topics/none",
    "/topics/orders/none",
    "/nodes",
    "/counter",
    "/lookup",
    "/publish/orders",
    "/watch/orders",
    "/confirm?verb=delete&topic=orders",
    "/confirm?verb=empty&topic=orders&channel=metrics",
    "/send-back?topic=orders-dead&to=orders&of=archive",
]


# A script that moves the clock of a page.
LATER = """
const real = Date;
window.Date = class extends real { constructor() { super(real.now() + 9000); } };
"""


def complaints(browser: Chrome) -> list[str]:
    """What the browser says of scripts and of the policy; a page may be a 404 on purpose."""
    found = [str(entry["message"]) for entry in browser.get_log("browser")]
    return [line for line in found if "status of 404" not in line and "status of 502" not in line]


@pytest.mark.parametrize("path", PAGES)
def test_pages_can_be_read_by_everybody(browser: Chrome, site: NsqadminSite, path: str) -> None:
    browser.get(site.url + path)
    check_page(browser, scripts=2)
    assert complaints(browser) == []


def test_the_longest_names_fit_a_phone(
    browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]
) -> None:
    """NSQ allows 64 characters, and these have no place for a break."""
    name = "n" * 64
    nsqds[0].create_topic(name)
    nsqds[0].create_channel(name, name)
    nsqds[0].pub(name, b"x")
    try:
        for path in (
            "/",
            f"/topics/{name}",
            f"/topics/{name}/{name}",
            f"/topics/{name}/{name[1:]}",
            f"/confirm?verb=delete&topic={name}&channel={name}",
            f"/publish/{name}",
            f"/watch/{name}",
        ):
            browser.get(site.url + path)
            check_page(browser, scripts=2)
    finally:
        nsqds[0].delete_topic(name)


def test_the_page_of_a_node(browser: Chrome, site: NsqadminSite) -> None:
    browser.get(f"{site.url}/nodes")
    follow(browser, By.CSS_SELECTOR, "tbody th a")
    assert "topics." in text_of(browser)
    check_page(browser, scripts=2)


def test_rows_that_need_a_look_come_first(browser: Chrome, site: NsqadminSite) -> None:
    browser.get(site.url)
    assert "metrics has no consumers" in text_of(browser, "tbody tr")
    assert "send is paused" in text_of(browser)


def test_a_page_changes_without_a_reload(
    browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]
) -> None:
    browser.get(site.url)
    browser.execute_script("window.isTheSame = true")
    link = browser.find_element(By.LINK_TEXT, "clicks")
    browser.execute_script("arguments[0].focus()", link)
    try:
        nsqds[0].create_topic("fresh")
        eventually(lambda: "fresh" in text_of(browser))
        assert browser.execute_script("return window.isTheSame")
        # Whoever moves by keys is where they were.
        assert ask(browser, "return document.activeElement.textContent") == "clicks"
    finally:
        nsqds[0].delete_topic("fresh")


def test_a_page_that_is_not_renewed_says_so(
    browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]
) -> None:
    """Figures that stay the same look as if all were well."""
    nsqds[0].create_topic("short")
    browser.get(f"{site.url}/topics/short")
    nsqds[0].delete_topic("short")
    # The figures are nine seconds old by the clock of the page.
    browser.execute_script(LATER)
    eventually(lambda: "are not renewed: Topic short" in text_of(browser, "#old"))
    browser.get(f"{site.url}/topics/orders")
    # A login page has other parts.
    browser.execute_script("document.getElementById('live').id = 'another'")
    browser.execute_script(LATER)
    eventually(lambda: "another page came" in text_of(browser, "#old"))
    check_page(browser, scripts=2)
    browser.execute_script("document.getElementById('another').id = 'live'")
    eventually(lambda: not browser.find_element(By.ID, "old").is_displayed())
    assert len(complaints(browser)) == 0


def test_keys_are_enough(browser: Chrome, site: NsqadminSite) -> None:
    browser.get(site.url)
    show_as(browser, 1100, 800)
    # Keys go to whatever has the focus, as the page renews itself.
    keys = ActionChains(browser)
    focused = "return document.activeElement.textContent"
    keys.send_keys(Keys.TAB).perform()
    assert ask(browser, focused) == "To the content"
    for _ in range(30):
        keys.send_keys(Keys.TAB).perform()
        if ask(browser, focused) == "clicks":
            break
    keys.send_keys(Keys.ENTER).perform()
    eventually(lambda: "count" in text_of(browser) and "/topics/clicks" in browser.current_url)


def test_pause_and_unpause_with_a_question_before(
    browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]
) -> None:
    browser.get(f"{site.url}/topics/clicks/count")
    follow(browser, By.LINK_TEXT, "Pause")
    assert "Pause channel count of clicks?" in text_of(browser)
    assert not nsqds[0].stats("clicks").topics[0].channels[0].paused
    follow(browser, By.CSS_SELECTOR, "main button")
    assert "Paused: channel count of clicks." in text_of(browser)
    assert all(nsqd.stats("clicks").topics[0].channels[0].paused for nsqd in nsqds)
    follow(browser, By.LINK_TEXT, "Go on")
    assert "paused" in text_of(browser, "h1")
    follow(browser, By.LINK_TEXT, "Unpause")
    follow(browser, By.CSS_SELECTOR, "main button")
    assert not any(nsqd.stats("clicks").topics[0].channels[0].paused for nsqd in nsqds)


def test_create_publish_and_delete(
    browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]
) -> None:
    browser.get(f"{site.url}/lookup")
    browser.find_element(By.ID, "topic").send_keys("by-hand")
    follow(browser, By.CSS_SELECTOR, "main button")
    assert "Created: topic by-hand." in text_of(browser)
    nsqds[0].create_topic("by-hand")
    nsqds[0].create_channel("by-hand", "c")
    eventually(lambda: "by-hand" in _opened(browser, f"{site.url}/publish/by-hand", "option"))
    browser.find_element(By.ID, "body").send_keys("one\ntwo é")
    follow(browser, By.CSS_SELECTOR, "main button")
    assert "The message is published to by-hand" in text_of(browser)
    assert nsqds[0].stats("by-hand").topics[0].message_count == 1
    browser.get(f"{site.url}/confirm?verb=delete&topic=by-hand")
    assert "These messages are lost on 1 nsqd" in text_of(browser)
    follow(browser, By.CSS_SELECTOR, "main button")
    assert "Deleted: topic by-hand." in text_of(browser)


def _opened(browser: Chrome, url: str, selector: str) -> str:
    browser.get(url)
    return text_of(browser, selector) and url


def test_watching(browser: Chrome, site: NsqadminSite, nsqds: list[NsqdHTTP]) -> None:
    nsqd = nsqds[0]

    def channels() -> list[str]:
        return [each.channel_name for each in nsqd.stats("mails").topics[0].channels]

    browser.get(f"{site.url}/watch/mails")
    eventually(lambda: "Watching; 0 messages came." in text_of(browser))
    nsqd.pub("mails", "<script>document.title = 'hacked'</script>")
    nsqd.pub("mails", '{"to": "ann@mail.example"}')
    nsqd.pub("mails", b"\x00\xff")
    eventually(lambda: "Watching; 3 messages came." in text_of(browser))
    shown = text_of(browser, "#messages")
    assert "<script>document.title = 'hacked'</script>" in shown
    assert '{\n  "to": "ann@mail.example"\n}' in shown
    assert "000000  00 ff" in shown
    assert "hacked" not in browser.title
    check = browser.execute_script("return document.querySelectorAll('#messages li').length")
    assert check == 3
    assert len(channels()) == 2
    browser.find_element(By.ID, "hold").click()
    assert "On hold" in text_of(browser, "#state")
    eventually(lambda: channels() == ["send"])
    browser.find_element(By.ID, "hold").click()
    eventually(lambda: len(channels()) == 2)
    browser.get(site.url)
    eventually(lambda: channels() == ["send"])
    assert complaints(browser) == []


def test_dead_letters_go_back(browser: Chrome, site: NsqadminSite) -> None:
    browser.get(f"{site.url}/topics/orders/archive")
    eventually(lambda: "orders-dead" in text_of(browser))
    browser.execute_script("window.stop()")
    follow(browser, By.LINK_TEXT, "Send back")
    assert "7 by the last look" in text_of(browser)
    follow(browser, By.CSS_SELECTOR, "main button")
    assert "7 messages went from orders-dead to orders." in text_of(browser)


def test_the_search(browser: Chrome, site: NsqadminSite) -> None:
    browser.get(site.url)
    browser.execute_script("window.stop()")
    touch(browser, lambda: browser.find_element(By.ID, "q").send_keys("click", Keys.ENTER))
    eventually(lambda: "q=click" in browser.current_url and "clicks" in text_of(browser, "tbody"))
    assert "mails" not in text_of(browser, "tbody")
