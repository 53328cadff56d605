"""Pictures in all colours, pages to follow, densities and animations."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run as run_command
from giaann_dask.diagnostics.pictures import schemes
from giaann_dask.diagnostics.pictures.animation import check_animation, draw_frames, save_animation
from giaann_dask.diagnostics.pictures.density import Density, count_density, draw_density
from giaann_dask.diagnostics.pictures.draw_options import DensityOptions, DrawOptions, save_figure
from giaann_dask.diagnostics.pictures.drawing import draw_commit, draw_graph
from giaann_dask.diagnostics.pictures.interactive import line_values, neuron_values, page_of, save_page
from giaann_dask.diagnostics.pictures.layout import Line, Page, Words, choose_graph, curve, line_ends, part_of
from giaann_dask.diagnostics.pictures.prediction import Prediction, activation_of, draw_step, graph_of, predict
from giaann_dask.diagnostics.pictures.schemes import Activity, Colouring, colour_graph
from giaann_dask.errors import EmptyInputError, MissingDependencyError, OptionError
from giaann_dask.keys import pack_target
from giaann_dask.models import model_of
from giaann_dask.models.columns.connection_table import ConnectionTable
from giaann_dask.models.columns.export import find_best_columns, read_columns, segment_names
from giaann_dask.models.columns.state.activation import StateEntries
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.vocabulary import Vocabulary

CONCEPTS = ("dog", "cat", "house")
FEATURES = ("", "the", "barks", "at", ".")
CONNECTIONS = [
    # source, target, segment, branch, strength
    ((0, 1), (0, 0), 7, 0, 5.0),
    ((0, 1), (0, 0), 2, 1, 2.5),
    ((0, 0), (0, 2), 7, 0, 4.0),
    ((0, 2), (1, 0), 6, 0, 3.0),
    ((1, 0), (1, 3), 2, 1, 1.0),
]
PROMPT = "The old miller carried the bread to the"


def made_up() -> ConnectionTable:
    rows = [(*source, branch, segment, *target) for source, target, segment, branch, _ in CONNECTIONS]
    strength = np.array([c[4] for c in CONNECTIONS], np.float32)
    return ConnectionTable(*np.array(rows, np.int32).T, strength, CONCEPTS, FEATURES)


def graph_of_made_up() -> nx.DiGraph:
    graph = choose_graph(made_up(), [0, 1], DrawOptions())
    graph.graph["words"] = FEATURES
    return graph


def words(**changes: Any) -> Words:
    ever_pos = EverPos(verb=frozenset(["barks"]), adp=frozenset(["at"]))
    kinds = ("other word", "other word", "delimiter", "probable delimiter", "delimiter")
    names = tuple(segment_names(Specification()))
    sizes = {"segments": names, "column_segments": 3, "feature_segments": 5, "branches": 2}
    known: dict[str, Any] = {"delimiter": kinds.__getitem__, "part": lambda word: part_of(word, ever_pos)} | sizes
    return Words(**(known | changes))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommitReader]:
    folder = tmp_path_factory.mktemp("pictures")
    text = write_village(folder / "village.txt", 60)
    readers = {}
    with gd.connect(workers=0) as client:
        for profile in ("v1", "v2"):
            gd.train(text, folder / profile, client=client, specification=gd.Specification(profile=profile))
            store = NetworkStore(folder / profile)
            readers[profile] = store.open(store.head())
    return readers


@pytest.fixture(scope="module")
def prediction(networks: dict[str, CommitReader]) -> Prediction:
    return predict(networks["v2"], PROMPT, GenerationOptions(max_tokens=3))


def looks(colouring: Colouring, names: dict[Any, str]) -> dict[str, str]:
    return {names[neuron]: look.fill for neuron, look in colouring.neurons.items()}


def test_segments_say_how_far_before_the_target_a_source_stands() -> None:
    assert segment_names(Specification()) == [
        *("2 or more columns before", "1 column before", "same column"),
        *("5 or more tokens before", "4 tokens before", "3 tokens before", "2 tokens before", "1 token before"),
    ]
    v2 = segment_names(Specification(profile="v2"))
    assert (v2[0], v2[3], v2[4], v2[-1]) == ("3 columns before", "same column", "4 tokens before", "soma")
    best = Specification(profile="contexts")
    assert model_of(best).names(best, Vocabulary()).segments[-1] == "extends"


def test_every_connection_of_a_pair_is_told_strongest_first() -> None:
    graph = graph_of_made_up()
    assert graph.edges[(0, 1), (0, 0)]["parts"] == ((7, 0, 5.0), (2, 1, 2.5))
    assert {len(parts) for *_, parts in graph.edges(data="parts")} == {1, 2}


def test_default_colours_tell_neurons_and_connections_apart() -> None:
    theme = schemes.LIGHT
    colouring = colour_graph(graph_of_made_up(), theme, "default")
    inside = {(line.source[0] == line.target[0], line.colour) for line in colouring.lines}
    assert inside == {(True, theme.internal), (False, theme.external)}
    assert {bool(n[1]): look.fill for n, look in colouring.neurons.items()} == {False: theme.prime, True: theme.node}


@pytest.mark.parametrize(("colour", "place"), [("segments", 2), ("branches", 3)])
def test_segments_and_branches_have_a_line_each(colour: str, place: int) -> None:
    colouring = colour_graph(graph_of_made_up(), schemes.LIGHT, colour, words())
    # As many of the strongest as there are pairs, of which the weakest line is none.
    expected = Counter(c[place] for c in sorted(CONNECTIONS, key=lambda c: -c[4])[:4])
    entries = {entry.colour: entry.label for entry in colouring.legend[2:]}
    found = Counter(entries[line.colour] for line in colouring.lines)
    names = words().segments
    label = {at: f"segment {at}: {names[at]}" if colour == "segments" else f"branch {at}" for at in expected}
    assert found == {label[at]: count for at, count in expected.items()}


def test_column_and_feature_segments_differ_without_colours() -> None:
    colouring = colour_graph(graph_of_made_up(), schemes.LIGHT, "segments", words())
    dashed = {entry.label.split(":")[0]: entry.dashed for entry in colouring.legend[2:]}
    assert dashed == {"segment 2": False, "segment 6": True, "segment 7": True}


def test_words_are_coloured_by_what_the_network_stores() -> None:
    graph = graph_of_made_up()
    names = dict(graph.nodes(data="name"))
    parts = looks(colour_graph(graph, schemes.LIGHT, "parts", words()), names)
    assert parts["barks"] == schemes.CATEGORIES[0]
    assert parts["at"] == schemes.CATEGORIES[1]
    assert parts["the"] == schemes.LIGHT.node
    assert parts["dog"] == schemes.LIGHT.prime
    flags = colour_graph(graph, schemes.LIGHT, "delimiters", words())
    assert looks(flags, names)["barks"] == schemes.CATEGORIES[0]
    assert looks(flags, names)["at"] == schemes.CATEGORIES[1]
    shown = [entry.label for entry in flags.legend]
    assert shown == ["concept (noun)", "delimiter", "probable delimiter", "other word", "connection"]


def test_what_is_not_stored_is_refused_with_what_to_do() -> None:
    graph = graph_of_made_up()
    with pytest.raises(OptionError, match=r"stores none.*colour delimiters"):
        colour_graph(graph, schemes.LIGHT, "parts", words(part=None))
    with pytest.raises(OptionError, match="without a prompt"):
        colour_graph(graph, schemes.LIGHT, "activation", words())
    with pytest.raises(OptionError, match="colour is 'rainbow'"):
        DrawOptions(colour="rainbow")


def test_activation_marks_source_candidates_and_winner() -> None:
    graph, theme = graph_of_made_up(), schemes.LIGHT
    state = Activity(value={(0, 2): 2.0, (1, 0): 1.0}, source=(0, 2), candidates=[(1, 0), (0, 1)], winner=(1, 0))
    colouring = colour_graph(graph, theme, "activation", activity=state)
    assert colouring.scale is not None
    assert colouring.scale.largest == 2.0
    assert colouring.neurons[0, 2][:2] == (schemes.ACTIVATION[-1], theme.text)
    assert colouring.neurons[1, 0].edge == theme.mark
    assert colouring.neurons[0, 1].dashed
    assert colouring.neurons[0, 0].fill == theme.node
    # The connection to the winner lies on top.
    assert colouring.lines[-1] == Line((0, 2), (1, 0), 3.0, theme.mark, bold=True)


def test_a_word_can_be_several_parts() -> None:
    ever_pos = EverPos(adp=frozenset(["after"]), cconj=frozenset(["and"]), sconj=frozenset(["after", "and"]))
    assert [part_of(word, ever_pos) for word in ("After", "and", "the")] == [
        "several of these",
        "conjunction",
        "other word",
    ]


@given(st.integers(0, 0xFFFFFF))
def test_words_are_readable_on_every_colour(number: int) -> None:
    colour = f"#{number:06x}"
    dark, light = sorted((schemes.lightness(colour), schemes.lightness(schemes.word_on(colour))))
    # At the least favourable grey neither dark nor white words reach 4.
    assert (light + 0.05) / (dark + 0.05) > 3.9


def test_ordered_colours_differ_in_lightness() -> None:
    for stops in (schemes.ordered(4, "blue"), schemes.ordered(5, "orange"), list(reversed(schemes.ACTIVATION))):
        shades = [schemes.lightness(colour) for colour in stops]
        assert all(after > 1.2 * before for before, after in pairwise(shades))


def test_curves_begin_and_end_at_their_neurons() -> None:
    graph = graph_of_made_up()
    lines = colour_graph(graph, schemes.LIGHT, "default").lines
    page = Page.of(graph, 12.0, foot=0.0, head=1.0)
    for line, ends in zip(lines, line_ends(graph, lines, page), strict=True):
        both = graph.nodes[line.source], graph.nodes[line.target]
        bent = curve(page, both, ends)
        assert (bent[0], bent[-1]) == ends
        for end, node in zip(ends, both, strict=True):
            x, y = page.centre(node)
            assert abs(end[0] - x) <= page.node / 2 + 1e-9
            assert abs(end[1] - y) <= 0.2 + 1e-9


@pytest.mark.parametrize("colour", ["default", "segments", "branches", "parts", "delimiters"])
def test_a_legend_says_what_colours_mean(networks: dict[str, CommitReader], colour: str, tmp_path: Path) -> None:
    options = DrawOptions(colour=colour, max_columns=2, max_features=3, width_inches=8)
    figure = draw_commit(networks["v1"], options)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend[0].startswith(("prime concept", "concept"))
    assert len(legend) >= 4
    picture = save_figure(figure, tmp_path / "a.svg").read_text(encoding="utf-8")
    # Words are outlines, named in comments.
    assert all(f"<!-- {label} -->" in picture for label in legend)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in (*figure.axes[0].texts, *figure.axes[0].get_legend().get_texts())]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_reading_by_region_is_reading_at_once(networks: dict[str, CommitReader]) -> None:
    reader = networks["v1"]
    whole = gd.Network(reader.path).table()
    columns = find_best_columns(reader, 4)
    assert columns == whole.best_connected(4)
    found, expected = read_columns(reader, columns), whole.select_columns(columns)
    names = ("src_col", "src_feat", "branch", "seg", "tgt_col", "tgt_feat", "strength")
    # One is sorted by region, the other is not.
    rows = [sorted(zip(*(getattr(table, n).tolist() for n in names), strict=True)) for table in (found, expected)]
    assert rows[0] == rows[1]


def test_a_network_that_has_learned_nothing_is_refused(tmp_path: Path) -> None:
    NetworkStore.create(tmp_path / "net", Manifest(specification=Specification()), EverPos())
    network = gd.Network(tmp_path / "net")
    for draw in (network.draw, network.pictures.draw_density):
        with pytest.raises(EmptyInputError, match="without connections"):
            draw()
    assert "<section" in network.report().html


def test_activation_is_each_segments_strongest_branch_summed_up() -> None:
    key = pack_target([0, 0, 1, 2], [5, 5, 5, 9], [0, 1, 0, 0])
    value = np.float32([1.0, 3.0, 0.5, 2.0])
    neuron, total = activation_of(StateEntries(key, value, np.zeros(4, np.int32)))
    assert (neuron.tolist(), total.tolist()) == ([5, 9], [3.5, 2.0])
    assert [len(part) for part in activation_of(None)] == [0, 0]


def test_a_prediction_is_that_of_generate(networks: dict[str, CommitReader]) -> None:
    network = gd.Network(networks["v1"].path)
    options = gd.GenerationOptions(max_tokens=3, reasons=0)
    expected = network.session(PROMPT, options=options)
    tokens = list(expected)
    found = network.pictures.predict(PROMPT, options)
    beyond = [step for step in found.steps if step.predicted and step.following is not None]
    assert tokens
    assert [found.name(step.following) for step in beyond] == [(token.word, token.column) for token in tokens]
    assert [step.candidate_count for step in beyond] == [token.candidate_count for token in tokens]
    assert found.steps[-1].stop == expected.stop


def test_a_step_shows_source_candidates_and_what_is_chosen(prediction: Prediction) -> None:
    at = len(prediction.given) - 1
    step = prediction.steps[at]
    graph = graph_of(prediction, [at], DrawOptions(colour="activation"))
    assert {step.source, step.following} <= set(graph)
    assert step.activation(graph)
    figure = draw_step(prediction, 1)
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert [word.kind for word in prediction.text(at)] == ["given"] * len(prediction.given) + ["next"]
    assert shown[-1] == prediction.name(step.following)[0]
    assert any(f"{step.candidate_count} candidate" in text for text in shown)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert {"source", "candidate", "predicted"} <= set(labels)
    assert len(figure.axes) == 2, "a scale of activation"
    with pytest.raises(OptionError, match="step 9 of a prediction; expected 1 to"):
        draw_step(prediction, 9)


def test_an_animation_has_a_frame_for_every_step(prediction: Prediction, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    few = replace(prediction, steps=prediction.steps[-3:], given=prediction.given)
    frames = list(draw_frames(few, DrawOptions(colour="activation", width_inches=6, max_columns=2)))
    assert len({tuple(frame.get_size_inches()) for frame in frames}) == 1
    options = DrawOptions(colour="activation", width_inches=5, max_columns=1, max_features=2)
    path = save_animation(few, tmp_path / "deep" / "a.gif", options, seconds=0.5)
    with image.open(path) as found:
        assert found.n_frames == len(frames) == 3
        assert found.info["duration"] == 500
        found.seek(2)
        assert found.info["duration"] == 1500


def test_films_need_ffmpeg(prediction: Prediction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(MissingDependencyError, match=r"ffmpeg.*name a \.gif"):
            check_animation(tmp_path / "a.mp4")
    with pytest.raises(OptionError, match=r"\.gif, \.mp4"):
        check_animation(tmp_path / "a.png")
    with pytest.raises(OptionError, match="seconds is 0"):
        save_animation(prediction, tmp_path / "a.gif", seconds=0)
    if shutil.which("ffmpeg") is None:
        pytest.skip("no ffmpeg here to write a film with")
    few = replace(prediction, steps=prediction.steps[-2:])
    assert b"ftyp" in save_animation(few, tmp_path / "a.mp4").read_bytes()[:32]


@pytest.mark.parametrize("order", ["appearance", "region"])
def test_a_density_has_all_connections(networks: dict[str, CommitReader], order: str) -> None:
    reader = networks["v1"]
    table = gd.Network(reader.path).table()
    density = count_density(reader, DensityOptions(order=order))
    concepts = len(table.concepts)
    place = np.arange(concepts)
    if order == "region":
        regions = reader.placement().regions_of(np.arange(concepts) << 25)
        place[np.argsort(regions, kind="stable")] = np.arange(concepts)
        assert [number for _, number in density.regions] == sorted(set(regions.tolist()))
    # Fewer columns than cells: a cell is a column.
    expected = np.zeros((concepts, concepts), np.int64)
    np.add.at(expected, (place[table.tgt_col], place[table.src_col]), 1)
    assert np.array_equal(density.counts, expected)


def test_a_density_is_drawn_on_a_logarithmic_scale_with_axes() -> None:
    from matplotlib.colors import LogNorm

    counts = np.zeros((20, 20), np.int64)
    counts[3, 4] = 1000
    figure = draw_density(Density(counts, 40, "region", ((0, 0), (10, 3))), DensityOptions(dark=True))
    axes, bar = figure.axes
    (image,) = axes.get_images()
    assert isinstance(image.norm, LogNorm)
    assert image.get_array().mask.sum() == 399
    assert axes.get_xlabel() == "source column, by region, then first appearance"
    assert bar.get_ylabel() == "connections"
    assert [text.get_text() for text in axes.texts] == ["region 0", "region 3"]
    assert "1,000 connections among 40 concept columns, 2.0 columns a cell" in axes.get_title(loc="left")
    for wrong in ({"order": "size"}, {"cells": 5}, {"width_inches": 1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            DensityOptions(**wrong)


def test_a_page_knows_neurons_and_connections() -> None:
    graph = graph_of_made_up()
    colouring = colour_graph(graph, schemes.LIGHT, "default")
    page = Page.of(graph, 12.0, foot=0.0, head=0.5)
    neurons, lines = neuron_values(graph, colouring, page), line_values(graph, colouring, page)
    at = neurons["name"].index("dog")
    assert (neurons["column"][at], neurons["received"][at], neurons["sends"][at]) == ("dog", 7.5, 1)
    strongest = lines["strength"].index(7.5)
    assert lines["parts"][strongest] == "7/0: 5, 2/1: 2.5"
    assert neurons["name"][lines["source"][strongest]] == "the"
    assert {len(values) for values in lines.values()} == {4}


def test_a_page_asks_for_nothing_from_elsewhere() -> None:
    pytest.importorskip("bokeh", reason="pages need the extra pictures")
    graph = graph_of_made_up()
    graph.nodes[0, 1]["name"] = "$$x$$</script><b>"
    page = page_of(graph, colour_graph(graph, schemes.DARK, "default"), DrawOptions(dark=True), "Dogs & cats")
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=.?https?:", page)
    assert "Dogs &amp; cats" in page
    shown = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    # A formula would be fetched from elsewhere.
    assert "$$x" not in json.dumps(shown).replace('"name"', "").split('"shown"')[1][:200]
    assert "<b>" not in page.split("application/json")[1].split("</script>")[0]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None or shutil.which("chromedriver") is None:
        pytest.skip("no chromium and chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile = tmp_path_factory.mktemp("browser")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_argument("--window-size=1600,1000")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


_PLACES = """
const found = Bokeh.documents[0].get_model_by_name('neurons').data;
const figure = (view) => view.model.type === 'Figure' ? view
  : (view.child_views || []).map(figure).find((inner) => inner);
const view = [...Bokeh.index.roots].map(figure).find((inner) => inner);
const edge = view.el.getBoundingClientRect();
return Array.from(found.name).map((name, k) => [name, edge.left + view.frame.x_scale.compute(found.x[k]),
  edge.top + view.frame.y_scale.compute(found.y[k])]);
"""


def test_pointing_tells_and_tapping_follows(browser: Any, networks: dict[str, CommitReader], tmp_path: Path) -> None:
    pytest.importorskip("bokeh", reason="pages need the extra pictures")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    path = save_page(networks["v1"], tmp_path / "a.html", DrawOptions(concepts=("miller",), max_features=4))
    browser.get(path.as_uri())
    wait = WebDriverWait(browser, 30)
    ready = "return typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"
    wait.until(lambda b: b.execute_script(ready))
    places = browser.execute_script(_PLACES)

    def act(at: int, click: bool) -> None:
        actions = ActionChains(browser)
        actions.w3c_actions.pointer_action.move_to_location(round(places[at][1]), round(places[at][2]))
        if click:
            actions.w3c_actions.pointer_action.click()
        actions.perform()

    def read(name: str, column: str) -> list[Any]:
        found = f"return Array.from(Bokeh.documents[0].get_model_by_name('{name}').data.{column})"
        return list(browser.execute_script(found))

    def panel() -> str:
        return str(browser.execute_script("return Bokeh.documents[0].get_model_by_name('panel').text"))

    lines = {name: read("connections", name) for name in ("source", "target", "alpha", "target_name")}
    assert "Tap a neuron" in panel()
    prime = [name for name, *_ in places].index("miller")
    act(prime, click=False)
    tips = "return [...document.querySelectorAll('*')].flatMap(function all(e) { return e.shadowRoot ? "
    tips += "[e.shadowRoot.textContent, ...[...e.shadowRoot.querySelectorAll('*')].flatMap(all)] : []; }).join(' ')"
    wait.until(lambda b: "prime concept neuron)" in b.execute_script(tips))
    act(prime, click=True)
    wait.until(lambda b: "shown connection" in panel())
    sent = [at for at, source in enumerate(lines["source"]) if source == prime]
    assert sent
    bright = [at for at, alpha in enumerate(read("connections", "alpha")) if alpha == 1]
    assert bright == sent
    assert f"sends {len(sent)} shown" in panel()
    assert all(f"<b>{lines['target_name'][at]}</b>" in panel() for at in sent)
    # Going on to a target keeps the way.
    onward = next(lines["target"][at] for at in sent if lines["target"][at] != prime)
    act(onward, click=True)
    wait.until(lambda b: " → " in panel())
    assert panel().index("<b>miller</b>") < panel().index(f"<b>{places[onward][0]}</b>")
    assert browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.slow
def test_the_command_draws_every_kind(networks: dict[str, CommitReader], tmp_path: Path, capsys: Any) -> None:
    network = str(networks["v2"].path)
    small = ("--max-columns", "2", "--max-features", "3", "--width-inches", "6")
    for name, *request in (
        ("a.svg", "--colour", "delimiters", "--dark"),
        ("b.html", "--prompt", PROMPT, "--settings", "train"),
        ("c.png", "--density", "--density-order", "region"),
        ("d.gif", "--animate", "The old miller", "--max-tokens", "1"),
    ):
        assert run_command(["draw", network, "--out", str(tmp_path / name), *small, *request, "--json"]) == 0, name
        assert json.loads(capsys.readouterr().out)["picture"] == str(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "request_", "said"),
    [
        ("a.gif", [], "--animate"),
        ("a.txt", [], ".svg, .png, .pdf, .html"),
        ("a.html", ["--density"], ".svg, .png, .pdf"),
        ("a.png", ["--animate", "the mill"], ".gif, .mp4"),
        ("a.png", ["--density", "--colour", "parts"], "leave them out"),
        ("a.png", ["--colour", "activation"], "name a prompt"),
        ("a.png", ["--prompt", "the mill", "--colour", "parts"], "leave one of them out"),
        ("a.png", ["--prompt", "the mill", "--density"], "one of them"),
        ("a.png", ["--max-columns", "99"], "1 to 12"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(
    networks: dict[str, CommitReader], tmp_path: Path, capsys: Any, name: str, request_: list[str], said: str
) -> None:
    assert run_command(["draw", str(networks["v1"].path), "--out", str(tmp_path / name), *request_]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / name).exists()


def test_heavy_libraries_are_loaded_when_needed() -> None:
    heavy = {"matplotlib", "networkx", "bokeh", "pandas", "PIL"}
    folder = Path(schemes.__file__).parent.parent
    for path in (*folder.glob("*.py"), *folder.glob("pictures/*.py"), *folder.glob("network_report/*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.split(".")[0] for name in names}, path


def test_a_picture_of_light_is_not_one_of_dark() -> None:
    graph = graph_of_made_up()
    for dark in (False, True):
        theme = schemes.theme_of(dark)
        figure = draw_graph(graph, colour_graph(graph, theme, "default"), DrawOptions(dark=dark))
        assert figure.get_facecolor()[:3] == pytest.approx([int(theme.page[i : i + 2], 16) / 255 for i in (1, 3, 5)])
