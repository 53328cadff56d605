"""Tokens by the rules of spaCy, compared with spaCy's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from giaann_dask.text import english_tokenizer, splitting
from giaann_dask.text.english_tokenizer import EnglishTokenizer, english_rules, read_rules
from giaann_dask.text.reading import read_parts

if TYPE_CHECKING:
    from spacy.lang.en import English

_LETTERS = "abcXYZ019.,;:!?'\"’“”()[]-–—/\\@#$%&*+=<>_~^|°é日√½Ωßʼ…"
_CHUNKS = (
    "www.a.com", "http://x.org/y", "Word", "WORD", "woRD", "worD", "10km", "U.S.", "can't", "3-4", "a-b", "A.B", "vol.",
    "&c.",
)  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> English:
    """Return spaCy's pipeline with the abbreviations of this package."""
    from spacy.lang.en import English

    pipeline = English()
    for word in splitting.ABBREVIATIONS:
        pipeline.tokenizer.add_special_case(word, [{"ORTH": word}])
    return pipeline


def compare(reference: English, texts: list[str]) -> int:
    """Assert that tokens and spaces are those of spaCy; return the number of tokens."""
    tokenizer, count = EnglishTokenizer(splitting.ABBREVIATIONS), 0
    for text in texts:
        document = reference(" ".join(text.split()))
        found = tokenizer([text])
        assert found.tokens() == [token.text for token in document], text
        spaced = [token.whitespace_ != "" for token in document]
        assert found.spaced.tolist()[:-1] == spaced[:-1], text
        assert found.ends.tolist() == [len(document)]
        count += len(document)
    return count


def test_rules_are_read_from_spacy_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in an installation that cannot be written.
    (tmp_path / "package").write_text("", encoding="utf-8")
    monkeypatch.setattr(english_tokenizer, "__file__", str(tmp_path / "package" / "english_tokenizer.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rules = english_rules.__wrapped__()
    assert rules == read_rules()
    (kept,) = (tmp_path / "giaann_dask").iterdir()
    kept.write_text(json.dumps(rules | {"url": "x"}), encoding="utf-8")
    assert english_rules.__wrapped__() == rules | {"url": "x"}
    kept.write_text("damaged", encoding="utf-8")
    assert english_rules.__wrapped__() == rules == json.loads(kept.read_text(encoding="utf-8"))


def test_random_strings(reference: English) -> None:
    draw = random.Random(5)
    special = [text for text in reference.tokenizer.rules if not text.isspace()]

    def chunk() -> str:
        kind = draw.randrange(10)
        if kind < 4:
            return draw.choice(special)
        if kind < 7:
            return "".join(draw.choices(_LETTERS, k=draw.randint(1, 5)))
        return chr(draw.randint(33, 0xD7FF)) if kind < 8 else draw.choice(_CHUNKS)

    texts = ["".join(chunk() + draw.choice(("", "", " ")) for _ in range(draw.randint(1, 8))) for _ in range(1_500)]
    assert compare(reference, texts) > 6_000


def test_a_special_case_that_spaces_interrupt_keeps_shorter_ones_from_being_restored(reference: English) -> None:
    compare(reference, ["Why : - ( ( now", "a. m. : ) :-)) x ) : < 3 33", ">< ( ( ( * >", "That 's that's 's"])


def test_novels(reference: English, shared_folder: Path) -> None:
    part = next(read_parts([str(shared_folder / "data" / "books" / "pride-and-prejudice.txt.gz")]))
    assert compare(reference, list(part.passages)[:600]) > 10_000


def test_memory_of_chunks_is_bounded() -> None:
    tokenizer = EnglishTokenizer(maximum_chunks=100)
    passage = " ".join(f"word{number}" for number in range(250))
    assert tokenizer([passage]).tokens() == passage.split()
    assert tokenizer.chunks == 250
    assert tokenizer(["word7 word8", "new"]).tokens() == ["word7", "word8", "new"]
    assert tokenizer.chunks == 3


def test_calls_share_types_until_the_tokenizer_forgets() -> None:
    tokenizer = EnglishTokenizer(maximum_chunks=5)
    first = tokenizer(["Other cats before."])
    found = tokenizer(["One cat.", "", "A cat, one cat."])
    assert found.types is first.types
    assert found.tokens() == ["One", "cat", ".", "A", "cat", ",", "one", "cat", "."]
    assert found.type_of[1] == found.type_of[4]
    assert found.type_of[2] == first.type_of[3]
    assert found.ends.tolist() == [3, 3, 9]
    later = tokenizer(["Before."])
    assert later.types is not found.types
    assert first.tokens() == ["Other", "cats", "before", "."]
    assert tokenizer([]).tokens() == tokenizer([" "]).tokens() == []
