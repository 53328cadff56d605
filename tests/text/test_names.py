"""Dictionaries of names equal lists of them, packed or not."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giaann_dask.errors import StoreDamagedError
from giaann_dask.text.names import _SEARCHES, Names
from giaann_dask.text.strings import pack_strings, unpack_strings

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
        assert unpack_strings(*each.packed()) == expected
        for _ in range(_SEARCHES if often else 1):
            assert each.find("no such name") is each.find("\ud800") is None
        assert [each.find(name) for name in expected] == list(range(len(expected)))
    names.append("in one alone")
    assert (len(same), same.find("in one alone")) == (len(names) - 1, None)


@pytest.mark.parametrize(("text", "ends"), [(b"ab", [1]), (b"ab", [2, 1, 2]), (b"a\xff", [2]), ("é".encode(), [1, 2])])
def test_damaged_tables_are_refused(text: bytes, ends: list[int]) -> None:
    with pytest.raises(StoreDamagedError, match="a string table"):
        Names.of_packed(np.frombuffer(text, np.uint8), np.array(ends, np.int64))
