"""Text and HTML of a summary say the same, and numbers are written as promised."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest

from giaann_dask.representations import Summarised, Summary, bar, format_bytes

VOID = {"br", "hr", "img"}


class Page(HTMLParser):
    """Collects the words of every element in order, and checks that elements are closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.styles: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "style", "link", *VOID}
        self.open.append(tag)
        self.styles.append(dict(attrs).get("style") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


ROWS = [("concepts", "302"), ("on disk", "1.5 MiB"), ("path", "a <b> & \"c\" 'd'"), ("empty", "")]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
def test_text_and_html_have_the_same_content(rows: list[tuple[str, str]]) -> None:
    summary = Summary("Network <x> & y", rows)
    page = Page(summary.html())
    assert not page.open
    title, *lines = summary.text().split("\n")
    flat = [title, *(part.strip() for line in lines for part in line.strip().split("  ", 1))]
    assert page.words == [part for part in flat if part]
    assert page.words == ["Network <x> & y", *(part for row in rows for part in row if part)]


def test_values_are_aligned() -> None:
    text = Summary("T", [("a", "1"), ("long label", "two\nlines")]).text()
    assert text == "T\n  a           1\n  long label  two\n              lines"


def test_lines_of_a_value_stay_lines_in_html() -> None:
    page = Page(Summary("T", [("a", "two\nlines")]).html())
    assert page.words[-1] == "two\nlines"
    assert "pre-wrap" in page.styles[-1]


def test_html_sets_no_colour_of_its_own_for_text() -> None:
    page = Page(Summary("T", ROWS).html())
    declared = [part.strip() for style in page.styles for part in style.split(";")]
    assert {part for part in declared if part.startswith("color:")} == {"color:inherit"}


def test_an_object_shows_itself_by_its_summary() -> None:
    class Thing(Summarised):
        def summary(self) -> Summary:
            return Summary("Thing", [("size", "3")])

    assert repr(Thing()) == "Thing\n  size  3"
    assert Thing()._repr_html_() == Thing().summary().html()
    with pytest.raises(NotImplementedError):
        Summarised().summary()


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (48_590, "47.5 KiB"),
        (1024**2, "1.0 MiB"),
        (3 * 1024**4, "3.0 TiB"),
        (2000 * 1024**5, "2,000.0 PiB"),
    ],
)
def test_bytes(n: int, text: str) -> None:
    assert format_bytes(n) == text


@pytest.mark.parametrize(
    ("value", "text", "width"),
    [(0, "0.0 %", 0), (0.21504, "21.5 %", 21.5), (1, "100.0 %", 100), (math.nan, "none", 0)],
)
def test_a_bar_is_as_long_as_its_share(value: float, text: str, width: float) -> None:
    page = Page(bar(value))
    assert not page.open
    assert page.words == [text]
    fill = dict(part.split(":") for part in page.styles[2].split(";"))
    assert float(fill["width"].removesuffix("%")) == pytest.approx(width, abs=0.01)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.inf])
def test_a_share_is_at_most_everything(value: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        bar(value)
