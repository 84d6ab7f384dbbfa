"""The shop, as its page starts it, in a browser; parts of it are killed at the worst moments."""

from __future__ import annotations

import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.applications import Application, running
from tests.support.pages import check_page, follow, submit, text_of
from tests.support.waiting import eventually

# A browser and an application start in the first test.
pytestmark = pytest.mark.timeout(300)

ANN = {"quantity": "2", "name": "Ann Otter", "email": "ann@mail.example"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    with running("shop", tmp_path_factory.mktemp("shop")) as shop:
        yield shop
        shop.stop(signal.SIGTERM)


def rows(shop: Application, sql: str, *values: str) -> list[Any]:
    with closing(sqlite3.connect(shop.data / "shop.sqlite3", timeout=60)) as database:
        return database.execute(sql, values).fetchall()


@contextmanager
def held_up(shop: Application) -> Iterator[str]:
    """Yields the number of an order that everybody works on, while nobody can write.

    Its message is in nsqd, and in the outbox, too; the consumer has it and waits.
    """
    path = shop.data / "shop.sqlite3"
    topic = shop.topic("orders")
    before = 0 if topic is None else topic.message_count
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        with frozen(shop, "nsq_relay"):
            number = order_by_http(shop)
            database.execute("BEGIN IMMEDIATE")
        eventually(lambda: (found := shop.topic("orders")) and found.message_count == before + 1)
        eventually(lambda: sum(c.in_flight_count for c in shop.topic("orders").channels) == 1)
        yield number
        database.execute("ROLLBACK")


@contextmanager
def frozen(shop: Application, part: str) -> Iterator[None]:
    """As ``shop.frozen()``, at a moment at which the part has no lock of the database."""
    while True:
        with shop.frozen(part):
            path = shop.data / "shop.sqlite3"
            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
                try:
                    database.execute("BEGIN EXCLUSIVE")
                except sqlite3.OperationalError:
                    continue
                database.execute("ROLLBACK")
            yield
            return


def mails_about(shop: Application, number: str) -> int:
    ((count,),) = rows(
        shop, "SELECT count(*) FROM orders_sentmail WHERE message_id LIKE ?", f"%{number}%"
    )
    return int(count)


def state_of(shop: Application, number: str) -> str:
    ((state,),) = rows(
        shop, "SELECT state FROM orders_order WHERE number = ?", number.replace("-", "")
    )
    return str(state)


def order_by_http(shop: Application) -> str:
    """The number of a new order."""
    url = f"{shop.url}/products/cup/"
    with requests.Session() as session:
        page = session.get(url, timeout=60).text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)"', page))
        answer = session.post(url, {**ANN, **hidden}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.url.split("/")[-2]


def fill(browser: Chrome, **fields: str) -> None:
    for name, text in {**ANN, **fields}.items():
        field = browser.find_element(By.NAME, name)
        field.clear()
        field.send_keys(text)


def test_an_order_waits_is_confirmed_and_mailed_once(shop: Application, browser: Chrome) -> None:
    browser.get(shop.url)
    check_page(browser)
    follow(browser, By.LINK_TEXT, "Teapot")
    check_page(browser)
    fill(browser)
    with frozen(shop, "nsq_consume"):
        submit(browser)
        number = browser.current_url.split("/")[-2]
        assert "Waiting." in text_of(browser)
        check_page(browser)
        browser.refresh()
        eventually(lambda: shop.topic("orders"))
        assert (state_of(shop, number), mails_about(shop, number)) == ("waiting", 0)
    # The page looks again by itself.
    eventually(lambda: "Confirmed at" in text_of(browser))
    check_page(browser)
    assert "68.00 €" in text_of(browser)
    follow(browser, By.LINK_TEXT, "See the mail")
    check_page(browser)
    mails = [mail.text for mail in browser.find_elements(By.CSS_SELECTOR, "article")]
    (mail,) = (mail for mail in mails if number in mail)
    assert "To ann@mail.example" in mail and "2 × Teapot" in mail
    assert mails_about(shop, number) == 1


def test_an_empty_form_orders_nothing(shop: Application, browser: Chrome) -> None:
    before = rows(shop, "SELECT count(*) FROM orders_order")
    browser.get(f"{shop.url}/products/cup/")
    fill(browser, quantity="", name="", email="")
    submit(browser)
    assert browser.title.startswith("Not ordered yet")
    problem = text_of(browser, "[role=alert]")
    for sentence in ("Say how many you want.", "Say who you are.", "Say where the confirmation"):
        assert sentence in problem
    check_page(browser)
    # The sentence leads to its field; what is typed now is kept.
    browser.find_element(By.LINK_TEXT, "Say who you are.").click()
    browser.switch_to.active_element.send_keys("Ann")
    submit(browser)
    assert browser.find_element(By.NAME, "name").get_attribute("value") == "Ann"
    assert rows(shop, "SELECT count(*) FROM orders_order") == before


def test_a_product_that_the_shop_has_not(shop: Application, browser: Chrome) -> None:
    browser.get(f"{shop.url}/products/car/")
    assert "The shop has no such page." in text_of(browser)
    check_page(browser)
    follow(browser, By.LINK_TEXT, "See what it has")
    assert text_of(browser, "h1") == "Products"


# What a browser does with a form that is sent by an impatient double click.
TWICE = """
const form = document.querySelector("form"), done = arguments[0];
const send = () => fetch(form.action, {method: "POST", body: new FormData(form)});
Promise.all([send(), send()]).then(answers => done(answers.map(answer => answer.url)));
"""


def test_a_form_that_is_sent_again_is_the_same_order(shop: Application, browser: Chrome) -> None:
    ((before,),) = rows(shop, "SELECT count(*) FROM orders_order")
    browser.get(f"{shop.url}/products/assam/")
    fill(browser)
    urls = browser.execute_async_script(TWICE)
    submit(browser)
    assert urls == [browser.current_url] * 2
    browser.back()
    eventually(lambda: browser.title.startswith("Assam tea"))
    submit(browser)
    assert urls == [browser.current_url] * 2
    assert rows(shop, "SELECT count(*) FROM orders_order") == [(before + 1,)]
    number = urls[0].split("/")[-2]
    eventually(lambda: state_of(shop, number) == "confirmed")
    assert mails_about(shop, number) == 1


def test_the_consumer_is_killed_while_it_handles_an_order(shop: Application) -> None:
    with held_up(shop) as number:
        shop.kill_part("nsq_consume")
        assert state_of(shop, number) == "waiting"
    # When the time of the message is over, nsqd gives it to the next one.
    eventually(lambda: state_of(shop, number) == "confirmed")
    assert mails_about(shop, number) == 1


def test_the_relay_is_killed_when_nsqd_has_the_message(shop: Application) -> None:
    with held_up(shop) as number:
        before = shop.topic("orders").message_count
        shop.kill_part("nsq_relay")
        # It could not say so. The next one publishes the message again.
        eventually(lambda: shop.topic("orders").message_count == before + 1)
    shop.wait_for(f"order {number} is confirmed already")
    assert (state_of(shop, number), mails_about(shop, number)) == ("confirmed", 1)
    eventually(lambda: rows(shop, "SELECT count(*) FROM gnsqsync_outbox_outboxmessage") == [(0,)])


def test_body_that_is_no_order_is_a_dead_letter_and_holds_up_nobody(shop: Application) -> None:
    shop.publish("orders", b"no order")
    eventually(lambda: (found := shop.topic("orders-dead")) and found.message_count == 1)
    number = order_by_http(shop)
    eventually(lambda: state_of(shop, number) == "confirmed")


def test_twenty_orders_while_everything_is_killed(shop: Application) -> None:
    numbers = []
    for part in ("nsq_relay", "nsq_consume", "runserver", "nsq_relay", "nsq_consume"):
        numbers += [order_by_http(shop) for _ in range(4)]
        shop.kill_part(part)
        if part == "runserver":
            eventually(lambda: answers(shop.url))
    eventually(lambda: all(state_of(shop, number) == "confirmed" for number in numbers))
    assert [mails_about(shop, number) for number in numbers] == [1] * 20


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=60).ok
    except requests.ConnectionError:
        return False


def test_ctrl_c(tmp_path: Path) -> None:
    with running("shop", tmp_path) as shop:
        order_by_http(shop)
        shop.stop(signal.SIGINT)
