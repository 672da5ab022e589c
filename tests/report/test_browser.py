"""Every kind of page in a real browser: it renders, says and loads nothing, clips nothing, and is accessible."""

import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from report.browser import Browser
from report.samples import PAGES, evaluation

WIDTHS = (320, 375, 768, 1280)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

# What is cut off or lies on something else: elements wider than the space they have, text of pictures outside of them,
# texts of one picture that overlap, and texts of one row that touch. Marks in the strips of tables may reach over their
# ends.
MISPLACED = """
(() => {
  const found = [];
  const named = (e) => `${e.tagName}.${e.getAttribute("class") || ""} "${e.textContent.trim().slice(0, 40)}"`;
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} wide`);
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || e.closest("svg, .strip")) continue;
    if (box.left < 0 || box.right > innerWidth + 0.5) found.push(`${named(e)} leaves the page`);
    if (e.clientWidth && e.scrollWidth > e.clientWidth + 1)
      found.push(`${named(e)} needs ${e.scrollWidth} and has ${e.clientWidth}`);
  }
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    const frame = picture.getBoundingClientRect();
    const texts = [...picture.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
    texts.forEach(([e, box], i) => {
      const out = box.left < frame.left - 12 || box.right > frame.right + 12 || box.bottom > frame.bottom + 3;
      if (out || box.right > innerWidth) found.push(`${named(e)} leaves its picture`);
      for (const [other, its] of texts.slice(i + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 0.5 && down > 3) found.push(`${named(e)} overlaps ${named(other)}`);
      }
    });
  }
  for (const row of document.querySelectorAll("tr")) {
    const lines = [...row.cells].flatMap((e) => {
      const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), part = document.createRange(), boxes = [];
      while (texts.nextNode()) {
        part.selectNodeContents(texts.currentNode);
        boxes.push(...[...part.getClientRects()].map((box) => [e, box]));
      }
      return boxes;
    });
    lines.forEach(([e, box], i) => {
      for (const [other, its] of lines.slice(i + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (e !== other && across > -3 && down > 3) found.push(`${named(e)} touches ${named(other)}`);
      }
    });
  }
  return found;
})()
"""

# Of a table that can be searched the first rows are enough: the others are like them.
VIOLATIONS = """
axe.run({exclude: [[".searchable tr:nth-child(n + 5)"]]}, %s).then((found) => found.violations.flatMap(
  (rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`)))
"""
EVERY_RULE = VIOLATIONS % '{resultTypes: ["violations"]}'
CONTRAST = VIOLATIONS % '{resultTypes: ["violations"], runOnly: ["color-contrast"]}'


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all pages. It may be missing on a reader's machine, but not where the project is tested."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("there is no browser: .ci/run installs chromium")
        pytest.skip("needs a browser: apt-get install chromium")
    found = Browser(program)
    yield found
    found.close()


@pytest.fixture(scope="session")
def axe() -> str:
    return files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def opened(browser: Browser, name: str, folder: Path) -> None:
    """Open a page of this kind with everything on it unfolded."""
    path = folder / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_whole_and_is_accessible(browser: Browser, axe: str, name: str, tmp_path: Path) -> None:
    opened(browser, name, tmp_path)
    browser.run(f"{axe}; 0")
    pictures = browser.run(
        "[...document.querySelectorAll('svg[role=img]')].map((e) => e.getBoundingClientRect().height)"
    )
    assert pictures and min(pictures) > 100
    papers = []
    for dark, widths in ((False, WIDTHS), (True, WIDTHS[-1:])):  # the theme changes nothing but colours
        for width in widths:
            browser.look(width, dark=dark)
            assert browser.run(MISPLACED) == [], f"at {width} pixels"
        assert browser.run(CONTRAST if dark else EVERY_RULE) == [], "in the dark" if dark else "in the light"
        papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert papers[0] == "rgb(255, 255, 255)" and papers[1] != papers[0]
    assert messages(browser) == [] and requests(browser) == []


def messages(browser: Browser) -> list[dict[str, Any]]:
    """Errors, and what was written to the console."""
    kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event["params"] for event in browser.events if event["method"] in kinds]


def requests(browser: Browser) -> list[str]:
    """What the page asked for beside itself; data that it carries is no request."""
    found = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert found and found[0].startswith("file:")
    return [url for url in found[1:] if not url.startswith("data:")]


def test_these_tests_can_fail(browser: Browser, axe: str, tmp_path: Path) -> None:
    """A page with every fault that the other tests look for."""
    path = tmp_path / "bad.html"
    path.write_text("""<!doctype html><meta charset=utf-8><title>bad</title>
<p style="width:2000px">wide</p><div style="width:50px;overflow:hidden;white-space:nowrap">clipped clipped clipped</div>
<table style="border-spacing:0"><tr><td style="padding:0">one<td style="padding:0">two</table>
<svg role=img viewBox="0 0 100 100" width=100><text x=0 y=50>one</text><text x=5 y=52>two</text></svg>
<img src="missing.png"><script>console.error("no"); nothing.at.all();</script>""")
    browser.look(375, dark=False)
    browser.open(path)
    browser.run(f"{axe}; 0")
    found = " ".join(browser.run(MISPLACED))
    assert all(fault in found for fault in ("the page is", "leaves the page", "needs", "overlaps", "touches"))
    assert any(rule.startswith("image-alt") for rule in browser.run(EVERY_RULE))
    assert len(messages(browser)) >= 2 and requests(browser)[0].endswith("missing.png")


def test_a_search_finds_classes(browser: Browser, tmp_path: Path) -> None:
    opened(browser, "many classes", tmp_path)
    rows = "[...document.querySelectorAll('.searchable tbody th')].map((e) => e.textContent)"
    assert len(browser.run(rows)) == 100
    typed = "(() => { const field = document.querySelector('input'); field.value = '%s'; "
    typed += "field.dispatchEvent(new Event('input')); return document.querySelector('output').textContent; })()"
    assert browser.run(typed % "NUMBER 12") != ""
    names = browser.run(rows)
    assert names and all("number 12" in name for name in names)
    assert browser.run("document.querySelector('.searchable .stacked').getAttribute('aria-label')").endswith("too low")
    assert browser.run(typed % "no such class") == "0 of 0 shown" and browser.run(rows) == []


def test_text_in_a_notebook_is_on_the_left(browser: Browser, tmp_path: Path) -> None:
    """Jupyter's own rule puts every cell on the right."""
    jupyter = ":not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td { text-align: right }"
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<meta charset=utf-8><style>{jupyter}</style>"
        f"<div class=jp-RenderedHTMLCommon>{evaluation()._repr_html_()}</div>"
    )
    browser.open(path)
    align = "[...document.querySelectorAll('tbody tr:first-child td')].map((e) => getComputedStyle(e).textAlign)"
    assert browser.run(align) == ["left", "right", "right", "left"]
