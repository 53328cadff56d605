"""The table of connections, the choice of what is drawn, and the picture."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.diagnostics.pictures.draw_options import DrawOptions, save_figure
from giaann_dask.diagnostics.pictures.drawing import draw_graph
from giaann_dask.diagnostics.pictures.layout import choose_graph, require_connections
from giaann_dask.diagnostics.pictures.schemes import colour_graph, theme_of
from giaann_dask.errors import EmptyInputError, InputFormatError, OptionError
from giaann_dask.models.columns.connection_table import COORDINATES, ConnectionTable

CONCEPTS = ("dog", "cat", "house", "boat", "Mill")
FEATURES = ("", "the", "barks", "at", ".", "$")
CONNECTIONS = [
    # source, target, branch, segment, strength
    ((0, 1), (0, 0), 0, 7, 5.0),
    ((0, 1), (0, 0), 1, 2, 2.5),
    ((0, 0), (0, 2), 0, 7, 4.0),
    ((0, 2), (1, 0), 0, 6, 3.0),
    ((0, 0), (1, 0), 0, 1, 1.0),
    ((1, 0), (0, 0), 0, 1, 1.5),
    ((0, 0), (0, 0), 1, 3, 0.5),
    ((2, 0), (1, 3), 0, 5, 6.0),
    ((3, 4), (3, 5), 0, 7, 90.0),
]


def draw_network(table: ConnectionTable, options: DrawOptions | None = None) -> Any:
    """Draw columns of a table as a commit's are drawn."""
    options = options or DrawOptions()
    require_connections(len(table))
    columns = table.find_columns(options.concepts) or table.best_connected(options.max_columns)
    graph = choose_graph(table.select_columns(columns), columns, options)
    return draw_graph(graph, colour_graph(graph, theme_of(options.dark), "default"), options)


def made_up(connections: list[Any] | None = None) -> ConnectionTable:
    chosen = CONNECTIONS if connections is None else connections
    rows = [(*source, branch, segment, *target) for source, target, branch, segment, _ in chosen]
    arrays = np.array(rows, np.int32).reshape(-1, 6).T
    return ConnectionTable(*arrays, np.array([c[4] for c in chosen], np.float32), CONCEPTS, FEATURES)


@pytest.fixture(scope="module")
def golden(data_folder: Path) -> ConnectionTable:
    folder = data_folder / "syn_seed8"
    names = json.loads(gzip.decompress((folder / "dictionary.json.gz").read_bytes()))
    with np.load(folder / "connections.npz") as arrays:
        return ConnectionTable(
            **{name: arrays[name] for name in arrays.files},
            concepts=names["concepts_saved"],
            features=names["features_saved"],
        )


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def arrows(figure: Any) -> list[Any]:
    from matplotlib.patches import FancyArrowPatch

    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tgt_col", np.zeros(3, np.int32), "length"),
        ("strength", np.zeros((9, 1), np.float32), "length"),
        ("seg", np.zeros(9, np.float32), "integers"),
        ("strength", np.zeros(9, np.float64), "float32"),
        ("src_col", np.full(9, 5), "5 concepts"),
        ("tgt_feat", np.full(9, -1), "6 features"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(name: str, value: Any, said: str) -> None:
    table = made_up()
    parts = {part: getattr(table, part) for part in (*COORDINATES, "strength", "concepts", "features")}
    with pytest.raises(InputFormatError, match=said):
        ConnectionTable(**(parts | {name: value}))


def test_selected_columns_keep_both_ends() -> None:
    table = made_up()
    kept = table.select_columns([0, 1])
    assert (len(table), len(kept), len(table.select_columns([]))) == (9, 7, 0)
    assert kept.strength.tolist() == [5.0, 2.5, 4.0, 3.0, 1.0, 1.5, 0.5]
    assert kept.concepts is table.concepts
    for column in (5, -1):
        with pytest.raises(InputFormatError, match="5 concepts"):
            table.select_columns([column])


def test_sums_are_those_of_a_dictionary(golden: ConnectionTable) -> None:
    expected: dict[Any, float] = defaultdict(float)
    ends = (golden.src_col, golden.src_feat, golden.tgt_col, golden.tgt_feat)
    for *key, strength in zip(*(e.tolist() for e in ends), golden.strength.tolist(), strict=True):
        expected[tuple(key)] += strength
    pairs = golden.added_up()
    found = pairs.strongest(len(golden), len(golden.features))
    assert {(*s, *t): strength for s, t, strength in found} == pytest.approx(expected)
    assert [strength for *_, strength in found] == sorted(expected.values(), reverse=True)


def test_features_are_ranked_by_both_directions() -> None:
    # In column 0: "the" 7.5; "barks" 4 in and 3 out.
    pairs = made_up().added_up()
    assert pairs.strongest_features(0) == [1, 2]
    assert pairs.strongest_features(1) == [3]
    assert pairs.strongest(1, 2) == [((3, 4), (3, 5), 90.0)]
    assert made_up([*CONNECTIONS, CONNECTIONS[2]]).added_up().strongest_features(0) == [2, 1]
    # Of each column only the strongest feature neuron and the prime concept neuron.
    kept = [(source, target) for source, target, _ in pairs.strongest(10, 1)]
    prime = [((0, 0), (0, 0)), ((0, 0), (1, 0)), ((1, 0), (0, 0))]
    assert sorted(kept) == sorted([*prime, ((0, 1), (0, 0)), ((2, 0), (1, 3))])


def test_best_connected_columns_are_chosen_one_after_another(golden: ConnectionTable) -> None:
    between: dict[frozenset[int], float] = defaultdict(float)
    for a, b, strength in zip(golden.src_col, golden.tgt_col, golden.strength.astype(float), strict=True):
        if a != b:
            between[frozenset((int(a), int(b)))] += strength
    columns = range(len(golden.concepts))

    def gain(column: int, others: Any) -> float:
        return sum(between[frozenset((column, other))] for other in others if other != column)

    chosen = [max(columns, key=lambda column: gain(column, columns))]
    while len(chosen) < 4:
        chosen.append(max(set(columns) - set(chosen), key=lambda column: gain(column, chosen)))
    assert golden.best_connected(4) == chosen


def test_connections_inside_a_column_do_not_make_it_well_connected() -> None:
    assert made_up().best_connected(4) == [1, 2, 0, 3]


def test_columns_without_connections_are_not_chosen() -> None:
    assert sorted(made_up().best_connected(9)) == [0, 1, 2, 3]
    assert made_up([]).best_connected(3) == []


def test_concepts_are_found_by_name() -> None:
    table = made_up()
    assert table.find_columns(["cat", "Dog", "cat", "Mill"]) == [1, 0, 4]
    with pytest.raises(OptionError, match="did you mean house"):
        table.find_columns(["hous"])
    with pytest.raises(OptionError, match="lemmas"):
        table.find_columns(["zzzzz"])


def test_graph_of_the_made_up_network() -> None:
    graph = made_up().graph([0, 1], max_features=8, max_connections=4)
    assert graph.graph == {"columns": ["dog", "cat"], "concepts": 5, "total": 6}
    assert {(source, target): strength for source, target, strength in graph.edges(data="strength")} == {
        ((0, 1), (0, 0)): 7.5,
        ((0, 0), (0, 2)): 4.0,
        ((0, 2), (1, 0)): 3.0,
        ((1, 0), (0, 0)): 1.5,
    }
    assert dict(graph.nodes(data=True)) == {
        (0, 0): {"name": "dog", "place": 0, "row": 0},
        (0, 1): {"name": "the", "place": 0, "row": 1},
        (0, 2): {"name": "barks", "place": 0, "row": 2},
        (1, 0): {"name": "cat", "place": 1, "row": 0},
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_columns", 0),
        ("max_columns", 13),
        ("max_features", -1),
        ("max_connections", 0),
        ("width_inches", 4.9),
        ("width_inches", float("nan")),
    ],
)
def test_options_are_validated(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=name):
        DrawOptions(**{name: value})


def test_more_concepts_than_columns_are_refused() -> None:
    with pytest.raises(OptionError, match="at most 2"):
        DrawOptions(concepts=("a", "b", "c"), max_columns=2)


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(EmptyInputError, match="without connections"):
        draw_network(made_up([]))


def test_an_unknown_concept_is_said_with_close_names() -> None:
    with pytest.raises(OptionError, match=r"no concept 'bot' .* boat"):
        draw_network(made_up(), DrawOptions(concepts=("bot",)))


def test_picture_of_the_made_up_network() -> None:
    figure = draw_network(made_up(), DrawOptions(concepts=("dog", "cat")))
    shown = words(figure)
    # A column's name stands above its box and in its prime concept neuron.
    assert Counter(shown)["dog"] == Counter(shown)["cat"] == 2
    assert Counter(shown)["the"] == Counter(shown)["barks"] == 1
    assert "." not in shown
    caption = " ".join(shown[-2:][::-1])
    assert caption.startswith("2 of 5 concept columns, 2 feature neurons. Only the strongest 6 of the 6 ")
    colours = Counter(arrow.get_edgecolor()[:3] for arrow in arrows(figure))
    assert sorted(colours.values()) == [3, 3]
    assert len({arrow.get_linewidth() for arrow in arrows(figure)}) == 6


def test_only_the_strongest_are_drawn_and_the_rest_is_counted(golden: ConnectionTable) -> None:
    figure = draw_network(golden, DrawOptions(max_connections=25))
    assert len(arrows(figure)) == 25
    caption = " ".join(words(figure)[-3:][::-1])
    drawn, total, left = re.search(
        r"strongest (\d+) of the ([\d,]+) connections .* drawn, ([\d,]+) are left out", caption
    ).groups()  # type: ignore[union-attr]
    assert int(drawn) == 25
    assert int(total.replace(",", "")) == 25 + int(left.replace(",", ""))


def test_a_column_without_drawn_connections_is_still_drawn() -> None:
    figure = draw_network(made_up(), DrawOptions(concepts=("Mill",)))
    assert words(figure)[:2] == ["Mill", "Mill"]
    assert "No connections are drawn, 0 are left out." in words(figure)[-1]


def overlapping(boxes: list[Any]) -> list[tuple[int, int]]:
    return [(i, j) for (i, a), (j, b) in combinations(enumerate(boxes), 2) if a.overlaps(b)]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("columns", "width"), [(1, 5.0), (3, 5.0), (6, 12.0), (12, 24.0)])
def test_no_words_overlap_or_leave_the_page(golden: ConnectionTable, columns: int, width: float, dark: bool) -> None:
    options = DrawOptions(max_columns=columns, width_inches=width, dark=dark)
    figure = draw_network(golden, options)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in (*axes.texts, *axes.get_legend().get_texts())]
    assert overlapping(boxes) == []
    page = figure.bbox
    assert all(page.x0 <= b.x0 and b.x1 <= page.x1 and page.y0 <= b.y0 and b.y1 <= page.y1 for b in boxes)


def test_arrows_stay_between_caption_and_heads(golden: ConnectionTable) -> None:
    figure = draw_network(golden)
    figure.draw_without_rendering()
    extents = [text.get_window_extent() for text in figure.axes[0].texts]
    caption = max(box.y1 for box in extents[-2:])
    heads = min(box.y0 for box in extents[:6])
    boxes = [arrow.get_window_extent() for arrow in arrows(figure)]
    assert caption < min(box.y0 for box in boxes)
    assert max(box.y1 for box in boxes) < heads


def test_arrows_end_at_the_neurons_they_connect() -> None:
    figure = draw_network(made_up([CONNECTIONS[3]]), DrawOptions(concepts=("dog", "cat")))
    (arrow,) = arrows(figure)
    outline = arrow.get_path().vertices
    begin, end = outline[0], outline[np.argmax(outline[:, 0])]
    texts = [(text.get_text(), text.get_position()) for text in figure.axes[0].texts]
    (barks,) = [at for word, at in texts if word == "barks"]
    cat = min((at for word, at in texts if word == "cat"), key=lambda at: at[1])
    assert barks[0] < begin[0] < end[0] < cat[0]
    assert begin[1] == pytest.approx(barks[1], abs=0.01)
    assert end[1] == pytest.approx(cat[1], abs=0.02)


@pytest.mark.parametrize("word", ["$", "a$b$c", "x" * 200, " ", "<&>"])
def test_any_word_can_be_drawn(word: str, tmp_path: Path) -> None:
    table = ConnectionTable(*np.array([[0, 0, 0, 7, 0, 1]], np.int32).T, np.ones(1, np.float32), (word,), ("", word))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_network(table, DrawOptions(width_inches=5))
        save_figure(figure, tmp_path / "a.svg")
    prime, *nodes = figure.axes[0].texts[1:3]
    figure.draw_without_rendering()
    boxes = set(figure.axes[0].patches) - set(arrows(figure))
    width = min(box.get_window_extent().width for box in boxes)
    assert all(text.get_window_extent().width < width for text in (prime, *nodes))
    assert not any(text.get_parse_math() for text in figure.axes[0].texts[:3])
    shown = words(figure)[:3]
    assert all(text == word or (text.endswith("…") and word.startswith(text[:-1])) for text in shown)


def test_files_are_reproducible_and_undated(tmp_path: Path, golden: ConnectionTable) -> None:
    for suffix, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        paths = [
            save_figure(draw_network(golden, DrawOptions(max_columns=2)), tmp_path / f"{run}" / f"n{suffix}")
            for run in (1, 2)
        ]
        first, second = (path.read_bytes() for path in paths)
        assert first == second
        assert first.startswith(begins)
        assert b"dc:date" not in first
        assert b"CreationDate" not in first


@pytest.mark.parametrize("name", ["picture.gif", "picture", ".svg"])
def test_other_kinds_of_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.svg, \.png, \.pdf"):
        save_figure(draw_network(made_up()), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_capitals_in_a_suffix_do_not_matter(tmp_path: Path) -> None:
    assert save_figure(draw_network(made_up()), tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_shows_the_picture() -> None:
    assert draw_network(made_up())._repr_png_().startswith(b"\x89PNG")


def test_no_window_system_is_touched() -> None:
    code = (
        "import sys, numpy as np\n"
        "from giaann_dask.models.columns.connection_table import ConnectionTable\n"
        "from giaann_dask.diagnostics.pictures import drawing\n"
        "assert 'matplotlib' not in sys.modules and 'networkx' not in sys.modules\n"
        "one = np.zeros(1, np.int32)\n"
        "table = ConnectionTable(*[one] * 6, np.ones(1, np.float32), ('dog',), ('',))\n"
        "drawing.draw_column(table, 0)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def sentences(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [part for line in text.split("\n") for part in re.split(r'(?<=[.?"]) (?=[A-Z])', line) if part]


def test_sample_texts_are_long_enough_to_be_read() -> None:
    train, test = sentences(sample_text()), sentences(sample_test_text())
    assert (len(train), len(test)) == (405, 40)
    lengths = [len(re.findall(r"[\w']+", sentence)) for sentence in train + test]
    assert min(lengths) >= 9
    assert max(lengths) <= 25


def test_the_held_out_text_is_new_but_uses_known_words() -> None:
    train, test = sentences(sample_text()), sentences(sample_test_text())
    assert not set(train) & set(test)
    assert len(set(train)) == len(train)
    known = set(re.findall(r"\w+", " ".join(train).lower()))
    assert set(re.findall(r"\w+", " ".join(test).lower())) <= known


def test_sample_texts_are_plain() -> None:
    for path in (sample_text(), sample_test_text()):
        text = path.read_text(encoding="utf-8")
        assert text.isascii()
        assert text.endswith(".\n")
        assert "\n\n\n" not in text
        assert "  " not in text
