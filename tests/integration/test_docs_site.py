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
from tests.support.texts import DOCS, ROOT
from tests.support.waiting import LIMIT

# Seconds, for a busy machine; else the pages are built in twenty.
PATIENCE = 600
pytestmark = pytest.mark.timeout(PATIENCE)

# Widths of windows, and where the pages are dark. Widths change no colour, so each colour scheme is
# looked at in one of them.
WINDOWS = ((390, False), (800, True), (1400, False))
COLOURS = ((800, True), (1400, False))
# Two results. The first: elements that reach beyond the window, except in a box of the text that
# scrolls by itself; the theme lets the whole text scroll within the page, which counts as the page.
# The second: the number of long texts in a column of a few letters, which nobody reads.
LAYOUT = """
const box = e => e.tagName !== "ARTICLE"
  && (/auto|scroll/.test(getComputedStyle(e).overflowX) || box(e.parentElement));
const cutOff = [
  ...[document.documentElement, document.querySelector(".content")]
    .filter(e => e.scrollWidth > innerWidth),
  ...[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && e.checkVisibility() && !box(e)),
].map(e => `${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 40)}`).slice(0, 3);
const narrow = [...document.querySelectorAll("article table.facts td, article table.claims td")]
  .filter(e => e.textContent.trim().length > 40 && e.getBoundingClientRect().width < 90).length;
return [cutOff, narrow];
"""
# Icons have a text for screen readers, which nobody sees.
NO_BUTTONS = "document.querySelectorAll('button.copybtn').forEach(button => button.remove())"
# What a user types, and where the first three pages that are found must be.
SEARCHES = ("retry", "timeout", "backoff", "publish", "consumer", "dead letters")
ROOMS = ("quickstart", "tutorial/", "guides/")


# Packages of this environment that gnsqsync uses and the extra ``docs`` does not bring.
MISSING = ("pytest", "pyspark", "pyarrow", "matplotlib", "numpy", "rich", "fsspec")
BUILD = f"""
import importlib.machinery
import sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {MISSING!r}:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built once for all these tests, with the extra ``docs`` alone."""
    for package in "furo", "sphinx_copybutton":
        if find_spec(package) is None:
            missing(NoExtra(package, "docs"))
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", BUILD, "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PATIENCE - 60)
    assert done.returncode == 0, done.stderr.decode()
    return folder / "html"


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


def test_sphinx_builds_with_the_extra_docs_alone_and_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()
    page = (site / "reference" / "embedded.html").read_text(encoding="utf-8")
    assert "NsqCluster" in page and "NsqMessages" in page


def test_every_column_of_every_table_has_a_heading(site: Path) -> None:
    """An older docutils reads some headings otherwise than a newer one.

    The whole heading is in one cell then, and the cells beside it are empty. Sphinx does not warn.
    """
    pages = sorted(site.rglob("*.html"))
    headings = {
        (page.relative_to(site), heading)
        for page in pages
        for heading in re.findall(r"<th\b[^>]*>(.*?)</th>", page.read_text(), re.DOTALL)
    }
    assert len(headings) > 100
    assert [str(page) for page, text in headings if not re.sub("<[^>]+>", "", text).strip()] == []


def test_no_row_of_a_table_is_torn_in_two(site: Path) -> None:
    """A second line in the first column of a simple table begins a row of its own."""
    halves = []
    for page in sorted(site.rglob("*.html")):
        for row in re.findall(r"<tr\b.*?</tr>", page.read_text(), re.DOTALL):
            cells = [
                re.sub("<[^>]+>", "", cell).strip()
                for cell in re.findall(r"<td\b[^>]*>(.*?)</td>", row, re.DOTALL)
            ]
            if len(cells) == 2 and (cells[0].endswith(",") or not cells[1]):
                halves.append((str(page.relative_to(site)), *cells))
    assert halves == []


def test_a_dash_in_a_table_is_no_list(site: Path) -> None:
    """A cell that is a hyphen alone is a list with nothing in it: a point is shown."""
    empty = re.compile(r"<td><ul[^>]*>\s*<li>\s*(<p>\s*</p>)?\s*</li>")
    for page in sorted(site.rglob("*.html")):
        assert not empty.search(page.read_text(encoding="utf-8")), page.name


def test_nothing_is_cut_off_and_all_can_be_read(site: Path, browser: Chrome) -> None:
    faults = []
    for page in pages(site):
        name = page.relative_to(site)
        browser.get(page.as_uri())
        browser.execute_script(NO_BUTTONS)
        for width, dark in WINDOWS:
            show_as(browser, width, 900, dark=dark)
            cut_off, narrow = browser.execute_script(LAYOUT)
            faults += [f"{name} at {width}: {cut}" for cut in cut_off]
            if narrow:
                faults.append(f"{name} at {width}: {narrow} cells are too narrow")
            if (width, dark) in COLOURS:
                contrast, text = browser.execute_script(CONTRAST)
                # WCAG 2.2, 1.4.3.
                if contrast < 4.5:
                    scheme = "dark" if dark else "light"
                    faults.append(f"{name}, {scheme}: {text!r} has {contrast:.2f}")
    assert faults == []


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_guides_first(site: Path, browser: Chrome, words: str) -> None:
    show_as(browser, 1400, 900)
    browser.get(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")

    def found(_: Chrome) -> list[str]:
        links = browser.find_elements(By.CSS_SELECTOR, "ul.search li a")
        places = [link.get_attribute("href") or "" for link in links]
        return places if len(places) >= 3 else []

    places = WebDriverWait(browser, LIMIT).until(found)[:3]
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
