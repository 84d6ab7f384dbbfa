"""A browser for these tests, and what every page of an example has to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.browser import Unavailable, open_browser, show_as
from tests.support.needs import missing


@pytest.fixture(scope="package")
def browser() -> Iterator[Chrome]:
    try:
        with open_browser() as browser:
            yield browser
    except Unavailable as error:
        missing(error)


# What is wrong with the page that is shown, as a list of sentences.
FAULTS = """
const faults = [];
const all = selector => [...document.querySelectorAll(selector)];
if (!document.documentElement.lang) faults.push("no language");
if (!document.title) faults.push("no title");
for (const name of ["h1", "main", "header"])
  if (all(name).length !== 1) faults.push(`${all(name).length} ${name}`);
if (all("script").length) faults.push("a script");
for (const field of all("input:not([type=hidden])"))
  if (!field.labels.length) faults.push(`${field.name} has no label`);
for (const element of all("[aria-describedby], [aria-labelledby]"))
  for (const id of ["aria-describedby", "aria-labelledby"].map(a => element.getAttribute(a)))
    if (id && !document.getElementById(id)) faults.push(`there is no ${id}`);
const ids = all("[id]").map(element => element.id);
for (const id of new Set(ids))
  if (ids.filter(other => other === id).length > 1) faults.push(`two elements ${id}`);
if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
return faults;
"""

# The least contrast of a text with what is behind it, and that text.
CONTRAST = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const light = color => {
  const [r, g, b] = numbers(color).map(n => n / 255)
    .map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (; element; element = element.parentElement) {
    const color = getComputedStyle(element).backgroundColor;
    if ((numbers(color)[3] ?? 1) === 1) return color;
  }
};
const texts = [...document.body.querySelectorAll("*")].filter(element =>
  [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
return texts.map(element => {
  const two = [light(getComputedStyle(element).color), light(behind(element))];
  const contrast = (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
  return [contrast, element.textContent.trim()];
}).sort((a, b) => a[0] - b[0])[0];
"""


def check_page(browser: Chrome) -> None:
    """The page that is shown, at a desk and on a small phone, light and dark.

    A page that renews itself does not do so any more.
    """
    browser.execute_script("window.stop()")
    for width in (1100, 320):
        for dark in (False, True):
            show_as(browser, width, 800, dark=dark)
            where = f"{browser.current_url}, {width} pixels, {'dark' if dark else 'light'}"
            assert browser.execute_script(FAULTS) == [], where
            contrast, text = browser.execute_script(CONTRAST)
            # WCAG 2.2, 1.4.3.
            assert contrast >= 4.5, f"{where}: {text!r} has {contrast:.2f}"


def follow(browser: Chrome, by: str, name: str) -> None:
    """Click what leads to another page, or to the same one anew; returns when that is there."""
    browser.execute_script("window.isBefore = true")
    browser.find_element(by, name).click()
    arrived = "return !window.isBefore && document.readyState === 'complete'"
    WebDriverWait(browser, 60).until(lambda _: ask(browser, arrived))


def submit(browser: Chrome) -> None:
    follow(browser, By.CSS_SELECTOR, "button[type=submit]")


def text_of(browser: Chrome, selector: str = "main") -> str:
    """What is read there; empty where nothing is. In one step, as a page may renew itself."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    return str(ask(browser, script, selector))


def ask(browser: Chrome, script: str, *arguments: object) -> Any:
    """What the script returns, run again while it fails: it does, with any error of the driver's,
    in the moment in which one page gives way to the next."""
    waiting = WebDriverWait(browser, 60, ignored_exceptions=[WebDriverException])
    return waiting.until(lambda _: [browser.execute_script(script, *arguments)])[0]
