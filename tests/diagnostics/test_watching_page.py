"""The page of Dask's dashboard in a real browser, headless, while a network is trained on a cluster."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browsers import NEEDS_BROWSER, WIDTHS, errors, keep_picture, open_browser, overlapping, set_width
from support.village import write_village

import giaann_dask as gd
from giaann_dask.runs.placement import FIRST_REGIONS
from giaann_dask.text.read_options import ReadOptions

pytest.importorskip("bokeh", reason="needs bokeh (extra dashboard)")
pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.support.ui import WebDriverWait

from giaann_dask.diagnostics.monitoring.board import Board, Commit, RegionState, Sample, Stage
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.lazy import LazyModule

# Of the processes that collect this file, one runs it: models of Bokeh take a second to import.
monitoring = LazyModule("giaann_dask.diagnostics.monitoring.page")

_COLUMN = "return Array.from(Bokeh.documents[0].get_model_by_name(arguments[0]).get_array(arguments[1]))"
_TEXT = "return Bokeh.documents[0].get_model_by_name(arguments[0]).text"
_FITS = (
    "return [document.documentElement.scrollWidth <= innerWidth, document.documentElement.scrollHeight <= innerHeight]"
)


# Legends that are wider than their plots, and names below bars that are wider than these.
_CUT = """
return Bokeh.documents[0].roots().flatMap((root) => [...root.references()])
  .filter((model) => model.type === "Figure")
  .flatMap((plot) => {
    const view = Bokeh.index.find_one(plot);
    const title = view.canvas_view.el.ownerDocument.createElement("canvas").getContext("2d");
    title.font = `bold ${plot.title.text_font_size} ${plot.title.text_font}`;
    const written = title.measureText(plot.title.text).width;
    const found = view.frame.bbox.left + written > view.bbox.width ? [plot.title.text] : [];
    for (const legend of plot.legend ?? plot.above.filter((each) => each.type === "Legend")) {
      const box = legend.visible ? Bokeh.index.find_one(legend).bbox : null;
      if (box && box.right > view.bbox.width + 1) found.push(`${plot.title.text}: legend`);
    }
    return found;
  })
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("profile"), 1280) as opened:
        yield opened


@pytest.mark.cluster
@NEEDS_BROWSER
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_running_training_is_seen(browser: Any, tmp_path: Path, workers: int) -> None:
    text, stop = write_village(tmp_path / "village.txt", 40_000), threading.Event()
    set_width(browser, 1280)
    # An earlier page may have asked its server after that was closed.
    browser.get("about:blank")
    errors(browser)
    options = gd.TrainingOptions(batch_sequences=50, block_characters=20_000, commit_sequences=400)
    reading = gd.TextOptions(reading=ReadOptions(part_characters=8_000))
    reports = []

    def pause(event: Event) -> None:
        """Leave the processor to the browser."""
        if isinstance(event, RoundIntegrated):
            time.sleep(0.2)

    def train(client: Any) -> None:
        how = {"text": reading, "options": options, "stop": stop, "observer": pause}
        reports.append(gd.train(text, tmp_path / "net", client=client, **how).training_report)

    with gd.connect(workers=workers, dashboard="127.0.0.1:0") as client:
        work = threading.Thread(target=train, args=(client,))
        work.start()
        try:
            browser.get(f"http://127.0.0.1:{client.cluster.scheduler.http_server.port}/giaann")
            see_training(browser, {f"worker {number}" for number in range(max(workers, 1))})
            keep_picture(browser, "watching")
        finally:
            stop.set()
            work.join(120)
        assert reports[0].stopped, "it was seen while it ran"
        wait(browser, lambda b: tiles(b)["sequences trained"] == monitoring.short(reports[0].sequences))
        wait(browser, lambda b: reports[0].commit[:12] in b.execute_script(_TEXT, "commits"))
        assert tiles(browser)["rounds counting + integrating"] == "0 + 0"


def see_training(browser: Any, workers: set[str]) -> None:
    """Wait until the page says what a training does, and look whether it says so well."""
    wait(browser, lambda b: "Giaann" in [link.text for link in b.find_elements("css selector", ".navbar a")])
    wait(browser, lambda b: max(column(b, "over_time", "trained"), default=0) > 0)
    assert max(column(browser, "over_time", "connections")) > max(column(browser, "over_time", "trained"))
    # Workers of a busy machine, which do not say in time what stayed with them, are asked again a minute later.
    wait(browser, lambda b: max(column(b, "over_time", "stayed_bytes")) > 1000)
    assert max(column(browser, "over_time", "process_bytes")) > 1 << 26
    ago = column(browser, "over_time", "ago")
    assert ago == sorted(ago)
    wait(browser, lambda b: set(column(b, "sizes", "worker")) == workers)
    assert sorted(column(browser, "sizes", "name")) == [str(number) for number in range(FIRST_REGIONS)]
    assert column(browser, "sizes", "value") == sorted(column(browser, "sizes", "value"), reverse=True)
    assert sum(column(browser, "busiest", "value")) == pytest.approx(1)
    stages = column(browser, "stages", "stage")
    # Increments are not cut where one worker owns all regions.
    expected = ["integrate", *["route"][: len(workers) - 1], "count_batch"]
    assert [stage for stage in stages if stage in ("count_batch", "route", "integrate")] == expected
    wait(browser, lambda b: "Commits, the last of" in b.execute_script(_TEXT, "commits"))
    shown = tiles(browser)
    assert int(shown["rounds"].replace(",", "")) > 0
    assert shown["regions"] == str(FIRST_REGIONS)
    assert re.fullmatch(r"\d+ s ago", shown["last commit"])
    assert browser.execute_script(_FITS) == [True, True], "a window of 1280 by 900 shows all of it"
    assert errors(browser) == []


@NEEDS_BROWSER
@pytest.mark.parametrize("workers", [2, 11, 24])
def test_nothing_overlaps(browser: Any, tmp_path: Path, workers: int) -> None:
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    page = monitoring.MonitoringPage(busy_board(workers))
    (tmp_path / "page.html").write_text(file_html(page.root, INLINE, "page"), encoding="utf-8")
    # A page takes two seconds of the processor; few workers need no more room than many.
    for width in {2: WIDTHS[-1:], 11: WIDTHS[:1]}.get(workers, WIDTHS):
        set_width(browser, width, 2200 if width < 1280 else 900)
        browser.get((tmp_path / "page.html").as_uri())
        wait(browser, lambda b: b.execute_script("return Bokeh.documents[0]?.is_idle"))
        keep_picture(browser, f"watching-{workers}-{width}")
        assert overlapping(browser) == [], width
        assert browser.execute_script(_CUT) == [], width
        assert width < WIDTHS[-1] or browser.execute_script(_FITS) == [True, True]


def busy_board(workers: int) -> Board:
    """Return a board on which everything is shown, of as many storage workers."""
    board, now = Board(), time.time()
    board.regions = [
        RegionState(n, 1000 * n, 10, 65536 + 1024 * n, 1, n, 1 / 24, f"storage-{n % workers}") for n in range(24)
    ]
    board.region_count = 24
    names = ("tag", "read", "encode", "select", "place", "count_batch", "accumulate", "route", "integrate", "compact")
    board.stages = [Stage(name, 3, 2, 4.0) for name in names]
    board.commits.extend(Commit(f"COMMIT{n}ABCDEF", 123_456 * n, 12.3, now - 100 * n) for n in range(6))
    board.totals |= {"commits": 6, "sequences": 12_345_678, "rounds": 1234}
    for n in range(30):
        counts = {"sequences": 50 * n, "connections": 10**6 * n, "rounds": n, "data_stayed_bytes": 10**6 * n}
        rows = {"row_requests": 20 * n, "row_seconds": 0.05 * n, "asked_requests": n, "asked_seconds": 0.1 * n}
        board.histories.add(
            Sample(now - 60 + 2 * n, {**counts, **rows, "decoded_bytes": 1e6 * n, "process_bytes": 3e8})
        )
    return board


def wait(browser: Any, condition: Any) -> Any:
    # A page that has not loaded yet has no document of Bokeh.
    loading = [JavascriptException, StaleElementReferenceException]
    return WebDriverWait(browser, 120, poll_frequency=0.2, ignored_exceptions=loading).until(condition)


def column(browser: Any, source: str, name: str) -> list[Any]:
    """Return what the page draws, from its own document."""
    return list(browser.execute_script(_COLUMN, source, name))


def tiles(browser: Any) -> dict[str, str]:
    texts = re.findall(r">([^<>]+)</div>", browser.execute_script(_TEXT, "tiles"))
    return dict(zip(texts[1::2], texts[::2], strict=True))


def test_figures_over_time_are_those_of_the_samples() -> None:
    samples = [
        Sample(10.0 * n, {"sequences": 50 * n, "rounds": n, "data_increment_bytes": 640 * n, "decoded_bytes": 7.0 * n})
        for n in range(4)
    ]
    rows = {"row_requests": 20, "row_seconds": 0.05, "row_seconds_1": 10, "row_seconds_4": 10, "prompts_in_flight": 3}
    asked = {"asked_requests": 20, "asked_seconds": 0.1}
    found = monitoring.time_columns([*samples, Sample(40.0, {**samples[-1].values, **rows, **asked})], 40.0, 60.0)
    assert found["ago"][0] == pytest.approx(-40 / 60)
    # Over two changes, the last of which has not come.
    assert found["trained"] == [0, 5, 5, 5, 2.5]
    assert found["increment_bytes"] == [0, 640, 640, 640, 640]
    assert found["decoded_bytes"] == [0, 7, 14, 21, 21]
    last = {name: values[-1] for name, values in found.items()}
    assert (last["row_requests"], last["prompts_in_flight"]) == (2, 3)
    assert (last["answer_ms"], last["asked_ms"]) == (pytest.approx(2.5), pytest.approx(5))
    assert 5 < last["late_ms"] <= 10


def test_regions_are_sorted_and_coloured_by_worker() -> None:
    regions = [RegionState(n, 10 * n, n, 100 * n, 1, n, n / 10, f"storage-{n % 2}") for n in range(1, 5)]
    found = monitoring.region_columns(regions, "nbytes")
    assert found["name"] == ["4", "3", "2", "1"]
    assert found["colour"][0] == found["colour"][2] != found["colour"][1] == found["colour"][3]
    assert monitoring.region_columns(regions, "share")["text"][0] == "40.0 %"
    assert monitoring.region_columns([], "share")["name"] == []


def test_words_of_others_are_no_markup() -> None:
    board = Board()
    message = {"source": "a", "client": "b", "ended": False, "totals": {"commits": 1}, "gauges": {}}
    board.take({**message, "commits": [["<b>1</b>", 5, 0.25, 0.0]]}, 0.0)
    page = monitoring.MonitoringPage(board)
    texts = [model.text for model in page.root.references() if hasattr(model, "text") and isinstance(model.text, str)]
    assert any("&lt;b&gt;1" in text for text in texts)
    assert not any("<b>1" in text for text in texts)
