"""A sample is spread over all of the text, and the interval of what is extrapolated from it holds the truth."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from giaann_dask.api.texts import read_inputs
from giaann_dask.planning.growth import GROUPS, Growth, Interval
from giaann_dask.planning.sampling import PIECE, TextSample, sample_inputs
from giaann_dask.text.read_options import ReadOptions

_PARAGRAPHS = [
    f"Paragraph {number} of the long story of the mill. " + "It went on and on. " * 20 for number in range(800)
]


def _plain(folder: Path) -> object:
    (folder / "text.txt").write_text("\n\n".join(_PARAGRAPHS))
    return folder / "text.txt"


def _several(folder: Path) -> object:
    for part in range(4):
        (folder / f"{part}.txt").write_text("\r\n\r\n".join(_PARAGRAPHS[200 * part : 200 * (part + 1)]), newline="")
    return folder


def _compressed(folder: Path) -> object:
    (folder / "text.txt.gz").write_bytes(gzip.compress("\n\n".join(_PARAGRAPHS).encode()))
    return folder / "text.txt.gz"


def _json_lines(folder: Path) -> object:
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in _PARAGRAPHS))
    return folder / "text.jsonl"


def _memory(_: Path) -> object:
    return _PARAGRAPHS


def _iterator(_: Path) -> object:
    return iter(_PARAGRAPHS)


def _sample(inputs: object, characters: int) -> TextSample:
    read, text = read_inputs(inputs, None)  # type: ignore[arg-type]
    return sample_inputs(read, text.reading, characters, GROUPS)


@pytest.mark.parametrize("make", [_plain, _several, _compressed, _json_lines, _memory, _iterator])
def test_pieces_are_spread_over_all_of_the_text(tmp_path: Path, make: Callable[[Path], object]) -> None:
    sample = _sample(make(tmp_path), 8 * PIECE)
    pieces = [piece for group in sample.groups for piece in group]
    size = sum(map(len, _PARAGRAPHS))
    assert size * 0.98 < sample.size < size * 1.1
    assert 4 * PIECE < sum(piece.size for piece in pieces) < 12 * PIECE
    found = [number for number in range(800) if any(f"Paragraph {number} " in piece.text for piece in pieces)]
    quarters = np.bincount(np.array(found) // 200, minlength=4)
    assert not sample.whole
    assert quarters.min() > 0.1 * len(found)
    # Paragraphs are whole.
    assert all(piece.text.lstrip().startswith(("Paragraph", "{")) for piece in pieces)


@pytest.mark.parametrize("make", [_plain, _several, _compressed, _json_lines, _memory])
def test_a_short_text_is_taken_whole(tmp_path: Path, make: Callable[[Path], object]) -> None:
    sample = _sample(make(tmp_path), 10_000_000)
    pieces = [piece for group in sample.groups for piece in group]
    assert sample.whole
    assert sum(piece.size for piece in pieces) == sample.size
    assert all(any(each.strip() in piece.text for piece in pieces) for each in _PARAGRAPHS[::100])


def test_input_that_is_too_long_to_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("giaann_dask.planning.sampling._MOST_READ", 50_000)
    assert _sample(_PARAGRAPHS, 4 * PIECE).unread == ("list of 800 texts",)


def _drawn(seed: int, exponent: float, sequences: int, times: int) -> tuple[Growth, float, int]:
    """Return the growth of a sample of drawn connections, its size, and the distinct ones of a text that holds it."""
    rng = np.random.default_rng(seed)
    share = np.cumsum(1 / (np.arange(1, 4_000_000) + 20.0) ** exponent)
    # Places of the text differ in the length of their sequences.
    lengths = rng.gamma(4.0, 10.0, size=times * sequences).astype(int) + 1
    drawn = np.searchsorted(share, rng.random(lengths.sum()) * share[-1])
    ends = lengths.cumsum()
    chosen = rng.permutation(times * sequences)[:sequences]
    groups = np.array_split(chosen, GROUPS)
    of_groups = [np.concatenate([drawn[ends[each] - lengths[each] : ends[each]] for each in group]) for group in groups]
    sizes = np.array([float(len(group)) for group in groups])
    strengthened = np.array([float(len(each)) for each in of_groups])
    distinct = [float(len(np.unique(np.concatenate(of_groups[: end + 1])))) for end in range(GROUPS)]
    growth = Growth(sizes, sizes, strengthened, strengthened * 4, np.array(distinct), np.array(distinct), 1.5)
    return growth, float(times * sequences), len(np.unique(drawn))


@pytest.mark.parametrize("times", [10, 100])
@pytest.mark.parametrize("exponent", [0.9, 1.05])
def test_the_interval_holds_the_truth_in_four_of_five_texts(times: int, exponent: float) -> None:
    held = 0
    for seed in range(10):
        growth, size, truth = _drawn(seed, exponent, 60, times)
        low, _, high = growth.distinct(size)
        held += low <= truth <= high
    assert held >= 8


def test_the_whole_text_has_no_interval() -> None:
    growth, *_ = _drawn(1, 0.9, 60, 10)
    whole = float(growth.size.sum())
    assert growth.distinct(whole) == Interval.around(growth.connections[-1], 0.0)
    assert growth.total(growth.sequences, whole).high == growth.sequences.sum()


def test_the_interval_grows_with_the_text() -> None:
    growth, *_ = _drawn(1, 0.9, 60, 10)
    whole = growth.size.sum()
    widths = [found.high / found.low for found in (growth.distinct(times * whole) for times in (1, 2, 10, 100, 1e6))]
    assert widths == sorted(widths)
    assert widths[0] == 1.0
    assert ReadOptions().part_characters > PIECE
