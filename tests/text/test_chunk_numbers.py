"""Numbers of the chunks between white space, compared with ``str.split`` and a dictionary."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from giaann_dask.text.english_tokenizer import ChunkNumbers

# Few letters, so that chunks are repeated; all kinds of white space; half a surrogate pair.
_MIXED = st.text(alphabet=st.sampled_from([*"abé", " ", "\n", "\x1f", "\u00a0", "\u3000", "😀", "\ud800", "\0"]))


@given(st.lists(st.lists(_MIXED | st.text(), max_size=6), max_size=5))
def test_chunks_are_those_of_split(calls: list[list[str]]) -> None:
    numbers = ChunkNumbers()
    index: dict[str, int] = {}
    for passages in calls:
        before = len(index)
        chunks = [passage.split() for passage in passages]
        expected = [index.setdefault(chunk, len(index)) for passage in chunks for chunk in passage]
        found = numbers.number(passages)
        assert found.numbers.tolist() == expected
        assert found.ends.tolist() == list(accumulate(map(len, chunks)))
        assert found.new == list(index)[before:]
        assert len(numbers) == len(index)


def test_many_chunks() -> None:
    numbers, many = ChunkNumbers(), [str(number) for number in range(3000)]
    assert numbers.number([" ".join(many[::2])]).new == many[::2]
    found = numbers.number([" ".join(many)])
    assert found.new == many[1::2]
    assert found.numbers[::2].tolist() == list(range(len(many[::2])))
