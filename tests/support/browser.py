"""A headless Chromium for tests. Knows Debian's chromium and chromium-driver, downloads neither."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

__all__ = ["Unavailable", "open_browser", "show_as"]

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # /dev/shm of a container may be too small.
    "--disable-dev-shm-usage",
)


class Unavailable(Exception):
    """Chromium or its driver is not installed."""


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """Yield a new browser without history. Raises Unavailable."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise Unavailable("no Chromium: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}"):
            options.add_argument(argument)
        # Without the driver's path, selenium would search for one, even in the network.
        browser = webdriver.Chrome(options=options, service=Service(executable_path=driver))
        browser.set_page_load_timeout(60)
        browser.set_script_timeout(60)
        try:
            yield browser
        finally:
            browser.quit()


def show_as(browser: webdriver.Chrome, width: int, height: int, *, dark: bool = False) -> None:
    """Show pages in this size from now on, light or dark."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
