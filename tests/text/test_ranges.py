"""Parts that are read again from a byte of their file on equal those of reading it whole."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.errors import EmptyInputError, InputMissingError
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import locate_part, read_parts, read_range

PIECES = [  # of lines
    "A mill. ",
    "by, the river",
    "Größe é",
    "x" * 30,
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "  ",
    "\t",
    "\u3000",
    ". ",
    "\ufeff",
]


def check(path: Path, options: ReadOptions, text: str) -> int:
    """Read every part again; return how many there are: none where the text is blank, which alone is refused."""
    # A mark of byte order is no text, wherever it stands.
    if not text.replace("\ufeff", "").strip():
        with pytest.raises(EmptyInputError):
            list(read_parts([path], options))
        return 0
    parts = list(read_parts([path], options))
    assert parts
    for part in parts:
        located = locate_part(part, options)
        assert located is not None
        assert read_range(pickle.loads(pickle.dumps(located))) == part
    return len(parts)


@settings(examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.integers(1, 60), st.integers(1, 40))
@example(["A mill. ", "A mill. ", "Größe é", "\n", *["A mill. "] * 3], 23, 1)  # Divided in lines before the last.
def test_parts_of_plain_text(tmp_path: Path, pieces: list[str], characters: int, mark: int) -> None:
    path = tmp_path / "a.txt"
    text = "".join(pieces)
    path.write_bytes(text.encode())
    check(path, ReadOptions(part_characters=characters), text.removeprefix("\ufeff"))
    lines = [json.dumps({"text": "".join(pieces[i : i + mark])}) for i in range(0, len(pieces), mark)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(lines) + "\n")
    check(path, ReadOptions(part_characters=characters), text)


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["word", "blank", "# newdoc", "# text"]), max_size=40), st.integers(1, 200))
def test_parts_of_conllu(tmp_path: Path, kinds: list[str], characters: int) -> None:
    lines, number = [], 0
    for kind in kinds:
        number = number + 1 if kind == "word" else 0 if kind == "blank" else number
        word = f"{number}\tcat\tcat\tNOUN\tNN\t_\t_\t_\t_\t_"
        lines.append({"word": word, "blank": ""}.get(kind, kind))
    path = tmp_path / "a.conllu"
    path.write_text("\n".join(lines) + "\n")
    for newdoc in (False, True):
        check(path, ReadOptions(part_characters=characters, newdoc=newdoc, group=2), "word" * kinds.count("word"))


def test_what_is_compressed_or_changed_has_no_ranges(tmp_path: Path) -> None:
    text = "One sentence here. " * 50
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (packed,) = read_parts([tmp_path / "a.txt.gz"])
    assert locate_part(packed, ReadOptions()) is None
    path = tmp_path / "a.txt"
    path.write_text(text)
    options = ReadOptions(part_characters=300)
    assert check(path, options, text) > 3
    *_, last = read_parts([path], options)
    located = locate_part(last, options)
    assert located is not None
    path.write_text(text.replace("One", "Two"))
    with pytest.raises(InputMissingError, match="another text"):
        read_range(located)
    with pytest.raises(InputMissingError, match="read again"):
        read_range(replace(located, name=str(tmp_path / "none.txt")))
