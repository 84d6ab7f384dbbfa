"""The documentation as it is built, in a browser: every page at three widths, light and dark."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.browser import Unavailable, open_browser, show_as
from tests.support.needs import NoExtra, missing
from tests.support.pages import CONTRAST
from tests.support.servers import ROOT

pytestmark = pytest.mark.timeout(300)

WIDTHS = (390, 800, 1400)
# What reaches beyond the window, except in a box of the text that scrolls by itself. The theme
# lets the whole text scroll within the page, which counts as the page.
CUT_OFF = """
const box = e => e.tagName !== "ARTICLE"
  && (/auto|scroll/.test(getComputedStyle(e).overflowX) || box(e.parentElement));
return [
  ...[document.documentElement, document.querySelector(".content")]
    .filter(e => e.scrollWidth > innerWidth),
  ...[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && e.checkVisibility() && !box(e)),
].map(e => `${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 40)}`).slice(0, 3);
"""
# Long texts in a column of a few letters, which nobody reads.
NARROW = """
return [...document.querySelectorAll("article table.facts td, article table.claims td")]
  .filter(e => e.textContent.trim().length > 40 && e.getBoundingClientRect().width < 90).length;
"""
# Icons, which have a text for screen readers that nobody sees.
NO_BUTTONS = "document.querySelectorAll('button.copybtn').forEach(button => button.remove())"
# What a user types, and where the first three pages that are found must be.
SEARCHES = ("retry", "timeout", "backoff", "publish", "consumer", "dead letters")
ROOMS = ("quickstart", "tutorial/", "guides/")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built."""
    if find_spec("furo") is None:
        missing(NoExtra("furo", "docs"))
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    subprocess.run([*words, str(ROOT / "docs"), str(folder)], check=True, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    try:
        with open_browser() as opened:
            yield opened
    except Unavailable as error:
        missing(error)


def pages(site: Path) -> list[Path]:
    found = sorted(p for p in site.rglob("*.html") if p.relative_to(site).parts[0][0] != "_")
    assert len(found) > 80
    return found


def test_nothing_is_cut_off_and_all_can_be_read(site: Path, browser: Chrome) -> None:
    faults = []
    for page in pages(site):
        name = page.relative_to(site)
        browser.get(page.as_uri())
        browser.execute_script(NO_BUTTONS)
        for width in WIDTHS:
            show_as(browser, width, 900)
            faults += [f"{name} at {width}: {cut}" for cut in browser.execute_script(CUT_OFF)]
            if narrow := browser.execute_script(NARROW):
                faults.append(f"{name} at {width}: {narrow} cells are too narrow")
        for dark in (False, True):
            show_as(browser, WIDTHS[-1], 900, dark=dark)
            contrast, text = browser.execute_script(CONTRAST)
            # WCAG 2.2, 1.4.3.
            if contrast < 4.5:
                faults.append(f"{name}, {'dark' if dark else 'light'}: {text!r} has {contrast:.2f}")
    assert faults == []


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_guides_first(site: Path, browser: Chrome, words: str) -> None:
    show_as(browser, 1400, 900)
    browser.get(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")

    def found(_: Chrome) -> list[str]:
        links = browser.find_elements(By.CSS_SELECTOR, "ul.search li a")
        places = [link.get_attribute("href") or "" for link in links]
        return places if len(places) >= 3 else []

    places = WebDriverWait(browser, 30).until(found)[:3]
    names = [urldefrag(place).url.removeprefix(f"{site.as_uri()}/") for place in places]
    assert [name for name in names if not name.startswith(ROOMS)] == []


def test_no_page_asks_another_site(site: Path) -> None:
    asked = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    for page in pages(site):
        assert asked.findall(page.read_text(encoding="utf-8")) == [], page


def test_no_link_within_the_pages_is_dead(site: Path) -> None:
    ids: dict[Path, set[str]] = {}
    links: list[tuple[Path, str]] = []
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        ids[page] = set(re.findall(r'\bid="([^"]+)"', text))
        links += [(page, link) for link in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)]
    dead = []
    for page, link in links:
        if re.match(r"[a-z]+:", link):
            continue
        place, anchor = urldefrag(link)
        target = (page.parent / unquote(place)).resolve() if place else page
        if not target.exists() or (anchor and target in ids and unquote(anchor) not in ids[target]):
            dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


def test_no_link_of_the_readme_is_dead() -> None:
    for name in ("README.rst", "CONTRIBUTING.rst", "SECURITY.rst"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = [link for link in re.findall(r"`[^`]*<([^>`]+)>`_", text) if "://" not in link]
        assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
