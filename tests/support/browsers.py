"""A headless browser for tests of pages, windows of any width, and what overlaps in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs Chromium and its driver (Debian: chromium, chromium-driver)"
)
# Of a telephone, half a screen, and a laptop.
WIDTHS = (400, 500, 1280)
# Where pictures of pages are left, for those who want to look at them.
PICTURES = os.environ.get("GIAANN_PICTURES")
# No word to the outside; started as root only where tests are.
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *(("--no-sandbox",) if os.geteuid() == 0 else ()),
)


@contextmanager
def open_browser(profile: Path, width: int, height: int = 900) -> Iterator[Any]:
    """Open a browser with a folder for its profile, and close it in the end."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        driver.set_page_load_timeout(60)
        set_width(driver, width, height)
        yield driver
    finally:
        driver.quit()


def set_width(browser: Any, width: int, height: int = 900) -> None:
    """Resize the page; windows cannot be as narrow as a telephone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def errors(browser: Any) -> list[Any]:
    """Return what the browser's console has of errors."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def keep_picture(browser: Any, name: str) -> None:
    """Store a picture of the page, where pictures are kept."""
    if PICTURES:
        browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


def overlapping(browser: Any) -> list[str]:
    """Return the texts, fields and plots that overlap each other or are cut off at the sides."""
    return list(browser.execute_script(_OVERLAPPING))


# Boxes of lines of text, of fields, and of whole plots, also within shadow roots. A bar behind its figure has no text.
_OVERLAPPING = """
const boxes = [];
const add = (name, element, boxes_of) => {
  for (const box of boxes_of) if (box.width > 1 && box.height > 1) boxes.push({ name, element, box });
};
const visit = (node) => {
  if (node.nodeType === 3 && node.data.trim()) {
    const range = document.createRange();
    range.selectNodeContents(node);
    if (node.parentElement?.checkVisibility() ?? true) add(node.data.trim(), node, range.getClientRects());
  } else if (node.nodeType === 1) {
    if (["SCRIPT", "STYLE", "TITLE"].includes(node.tagName) || !node.checkVisibility()) return;
    const whole = node.matches("input, select, textarea, canvas");
    if (whole) return add(node.id || node.tagName, node, [node.getBoundingClientRect()]);
    if (node.matches(".bk-Figure")) return add("plot", node, [node.getBoundingClientRect()]);
    [...node.childNodes, ...(node.shadowRoot?.childNodes ?? [])].forEach(visit);
  }
};
visit(document.body);
const found = [];
const width = document.documentElement.clientWidth;
const wide = document.documentElement.scrollWidth;
if (wide > width) found.push(`the page is ${wide} wide`);
boxes.forEach((one, at) => {
  if (one.box.left < -1 || one.box.right > width + 1) found.push(`${one.name} is cut off`);
  for (const other of boxes.slice(at + 1)) {
    if (one.element === other.element) continue;
    const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (across > 1 && down > 3) found.push(`${one.name} / ${other.name}`);
  }
});
return found;
"""
