"""The checks of every page in a browser, and the moves of a test through pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import (
    ElementNotInteractableException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.browser import show_as

__all__ = ["ask", "check_page", "follow", "submit", "text_of", "touch"]

# Errors of a click or a key whose element went with the page that was before.
RENEWED = (ElementNotInteractableException, StaleElementReferenceException)

# A script that returns the faults of the shown page as a list of sentences.
FAULTS = """
const faults = [];
const all = selector => [...document.querySelectorAll(selector)];
if (!document.documentElement.lang) faults.push("no language");
if (!document.title) faults.push("no title");
for (const name of ["h1", "main", "header"])
  if (all(name).length !== 1) faults.push(`${all(name).length} ${name}`);
if (all("script").some(script => !script.src)) faults.push("a script in the page");
if (all("script").length > arguments[0]) faults.push(`${all("script").length} scripts`);
for (const field of all("input:not([type=hidden]), select, textarea"))
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

# A script that returns the lowest contrast of a text with its background, and that text.
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


def check_page(browser: Chrome, *, scripts: int = 0) -> None:
    """Check the shown page at a desk and on a small phone, light and dark.

    A page that renews itself is stopped. ``scripts``: upper bound of scripts in the page.
    """
    browser.execute_script("window.stop()")
    for width in (1100, 320):
        for dark in (False, True):
            show_as(browser, width, 800, dark=dark)
            where = f"{browser.current_url}, {width} pixels, {'dark' if dark else 'light'}"
            assert browser.execute_script(FAULTS, scripts) == [], where
            contrast, text = browser.execute_script(CONTRAST)
            # WCAG 2.2, 1.4.3 demands this contrast.
            assert contrast >= 4.5, f"{where}: {text!r} has {contrast:.2f}"


def follow(browser: Chrome, by: str, name: str) -> None:
    """Click a link or button that loads a page. Return when the page is there."""

    def click() -> None:
        browser.execute_script("window.isBefore = true")
        browser.find_element(by, name).click()

    touch(browser, click)
    arrived = "return !window.isBefore && document.readyState === 'complete'"
    WebDriverWait(browser, 60).until(lambda _: ask(browser, arrived))


def touch(browser: Chrome, action: Callable[[], None]) -> None:
    """Click or type, again if the page renewed itself between the look and the touch."""

    def touched(_: Chrome) -> bool:
        action()
        return True

    WebDriverWait(browser, 60, ignored_exceptions=RENEWED).until(touched)


def submit(browser: Chrome) -> None:
    follow(browser, By.CSS_SELECTOR, "button[type=submit]")


def text_of(browser: Chrome, selector: str = "main") -> str:
    """Return the text of an element, or "". One script reads it, as a page may renew itself."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    return str(ask(browser, script, selector))


def ask(browser: Chrome, script: str, *arguments: object) -> Any:
    """Return the result of the script, run again while it fails.

    It fails with any error of the driver while one page gives way to the next.
    """
    waiting = WebDriverWait(browser, 60, ignored_exceptions=[WebDriverException])
    return waiting.until(lambda _: [browser.execute_script(script, *arguments)])[0]
