"""Dictionaries of names equal lists of them, packed or not."""

from __future__ import annotations

import difflib
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from giaann_dask.errors import StoreDamagedError
from giaann_dask.text.names import Names, pack_strings

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.lists(TEXTS, unique=True), st.lists(TEXTS, unique=True), st.integers(0, 9), st.booleans())
def test_names_are_those_of_a_list(stored: list[str], added: list[str], count: int, often: bool) -> None:
    names, expected = Names.of_packed(*pack_strings(stored)).head(count), stored[:count]
    for name in added:
        if name not in expected:
            assert names.find(name) is None
            assert names.append(name) == len(expected)
            expected.append(name)
    same = pickle.loads(pickle.dumps(names.copy()))
    for each in (names, same):
        assert each == expected
        assert [each[at] for at in range(-len(each), 0)] == expected
        assert (each[1:], each[::-2]) == (expected[1:], expected[::-2])
        assert Names.of_packed(*each.packed()) == expected
        for _ in range(64 if often else 1):
            assert each.find("no such name") is each.find("\ud800") is None
        assert [each.find(name) for name in expected] == list(range(len(expected)))
    names.append("in one alone")
    assert (len(same), same.find("in one alone")) == (len(names) - 1, None)


@pytest.mark.parametrize(("text", "ends"), [(b"ab", [1]), (b"ab", [2, 1, 2]), (b"a\xff", [2]), ("é".encode(), [1, 2])])
def test_damaged_tables_are_refused(text: bytes, ends: list[int]) -> None:
    with pytest.raises(StoreDamagedError, match="a string table"):
        Names.of_packed(np.frombuffer(text, np.uint8), np.array(ends, np.int64))


@given(st.lists(st.text("abcé_ü", max_size=9), unique=True, max_size=40), st.text("abcéü", min_size=1, max_size=7))
@example(["a" * 300, "aab"], "aab")
def test_similar_names_are_those_of_difflib(names: list[str], word: str) -> None:
    half = Names.of_packed(*pack_strings(names[: len(names) // 2]))
    for name in names[len(names) // 2 :]:
        half.append(name)
    for without in ("", "_"):
        among = [name for name in names if not without or without not in name]
        assert half.similar(word, 3, without) == difflib.get_close_matches(word, among, 3)
    assert half.having("_") == [name for name in names if "_" in name]
