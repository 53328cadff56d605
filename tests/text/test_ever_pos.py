"""Test the ever-POS lexicon: its sources, its storage and the golden delimiter properties."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from giaann_dask.errors import (
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
    StoreFormatError,
)
from giaann_dask.text.ever_pos import PARTS, EverPos
from giaann_dask.text.tokens import TaggedWord


def read_conllu(path: Path) -> Iterator[TaggedWord]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = (line.split("\t") for line in file)
        yield from (TaggedWord(*row[1:5]) for row in rows if row[0].isdigit())


def read_lists(path: Path) -> dict[str, list[str]]:
    data = path.read_bytes()
    lists: dict[str, list[str]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return lists


def as_lists(ever: EverPos) -> dict[str, Any]:
    return {part: ever.as_dict()[part] for part in PARTS}


def check_golden_delimiters(ever: EverPos, path: Path) -> tuple[int, int]:
    tokens = delimiters = 0
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            rows = zip(record["words"], record["lemmas"], record["tags"], strict=True)
            ours = [ever.delimiter(word, lemma, tag) for word, lemma, tag in rows]
            assert ours == record["seq_delim_D"], record["words"]
            tokens += len(ours)
            delimiters += sum(ours)
    return tokens, delimiters


def test_synthetic_lexicon_from_words_equals_the_golden_one(data_folder: Path) -> None:
    folder = data_folder / "synthetic"
    words = [word for name in ("train", "test") for word in read_conllu(folder / f"{name}.conllu.gz")]
    golden = read_lists(folder / "everpos.json")
    assert as_lists(EverPos.from_words(words)) == {part: sorted(golden[part]) for part in PARTS}


def test_treebank_lexicon_from_words_equals_the_golden_one(shared_folder: Path) -> None:
    folder = shared_folder / "data" / "ewt"
    words = [word for name in ("dev", "test") for word in read_conllu(folder / f"{name}.conllu.gz")]
    golden = read_lists(folder / "everpos_dev_test.json.gz")
    assert as_lists(EverPos.from_words(words)) == {part: sorted(golden[part]) for part in PARTS}


def test_golden_delimiters_of_the_synthetic_set(data_folder: Path) -> None:
    ever = EverPos.from_json(data_folder / "synthetic" / "everpos.json")
    tokens, delimiters = check_golden_delimiters(ever, data_folder / "syn_seed8" / "train_sequences.jsonl.gz")
    assert 0 < delimiters < tokens


@pytest.mark.parametrize("name", ["seed8_N200", "seed12_N200", "seed12_N1000"])
def test_golden_delimiters_of_the_treebank(shared_folder: Path, name: str) -> None:
    ever = EverPos.from_json(shared_folder / "data" / "ewt" / "everpos_dev_test.json.gz")
    path = shared_folder / "golden" / "v1" / name / "train_sequences.jsonl.gz"
    tokens, delimiters = check_golden_delimiters(ever, path)
    assert 0 < delimiters < tokens


def test_only_the_four_parts_and_only_form_and_lemma_are_collected() -> None:
    words = [("He", "he", "PRON", "PRP"), ("Ran", "run", "VERB", "VBD"), ("Off", "off", "ADP", "RP")]
    ever = EverPos.from_words(TaggedWord(*word) for word in words)
    assert as_lists(ever) == {"VERB": ["ran", "run"], "ADP": ["off"], "CCONJ": [], "SCONJ": []}
    assert ever.is_ever("run", "VERB")
    assert not ever.is_ever("running", "VERB")
    assert not ever.is_ever("run", "ADP")


@pytest.mark.parametrize("word", [";", ":", ".", "?", "!"])
def test_sentence_stops_are_delimiters(word: str) -> None:
    assert EverPos().delimiter(word, word, ".")


@pytest.mark.parametrize("word", ["is", "are", ",", "("])
def test_fixed_words_are_probable_delimiters(word: str) -> None:
    assert EverPos().probable_delimiter(word, "-")
    assert not EverPos().probable_delimiter("-", word)
    assert not EverPos().delimiter(word, word, "VBZ")


def test_possessive_word_and_lemma_each_suffice() -> None:
    ever = EverPos(frozenset(["go"]), frozenset(["at"]), frozenset(["or"]), frozenset(["if"]))
    assert ever.delimiter("'s", "'s", "POS")
    assert not ever.delimiter("'s", "'s", "VBZ")
    assert ever.delimiter("went", "go", "VBD")
    assert ever.delimiter("go", "x", "NN")
    assert ever.delimiter("x", "at", "NN")
    assert not ever.delimiter("or", "if", "CC")
    assert ever.probable_delimiter("or", "x")
    assert ever.probable_delimiter("x", "if")
    assert not ever.probable_delimiter("go", "at")


def test_default_uses_the_dictionary_only() -> None:
    ever = EverPos.from_lemminflect()
    assert ever.is_ever("ran", "VERB")
    assert ever.is_ever("own", "VERB")
    assert not ever.is_ever("the", "VERB")
    assert not ever.is_ever("quickly", "VERB")
    assert not ever.is_ever("blorping", "VERB")
    assert not ever.is_ever("", "VERB")
    assert ever.delimiter("of", "of", "IN")
    assert ever.probable_delimiter("because", "because")


def test_default_is_pickled_without_its_verbs() -> None:
    ever = EverPos.from_lemminflect()
    assert ever.is_ever("ran", "VERB")
    data = pickle.dumps(ever)
    assert len(data) < 5000
    assert pickle.loads(data) == ever
    assert "ran" not in json.dumps(ever.as_dict()["VERB"])


def test_storing_keeps_content_and_identity() -> None:
    words = EverPos(frozenset(["go", "come"]), frozenset(["at"]))
    for ever in (words, EverPos.from_lemminflect(), words.union(EverPos.from_lemminflect()), EverPos()):
        again = EverPos.from_dict(json.loads(json.dumps(ever.as_dict())))
        assert again == ever
        assert again.identity() == ever.identity()
    assert words.identity() == EverPos(frozenset(["come", "go"]), frozenset(["at"])).identity()
    assert words.identity() != EverPos(frozenset(["go"]), frozenset(["at"])).identity()
    assert words.identity() != EverPos(frozenset(["at"]), frozenset(["go", "come"])).identity()


def test_union_contains_both() -> None:
    union = EverPos(verb=frozenset(["blorp"])).union(EverPos.from_lemminflect())
    assert union.is_ever("blorp", "VERB")
    assert union.is_ever("ran", "VERB")
    assert union.is_ever("of", "ADP")


def test_another_version_of_the_dictionary_is_rejected_when_used() -> None:
    other = EverPos(dictionary="0.0.1")
    with pytest.raises(MissingDependencyError, match=r"lemminflect==0\.0\.1"):
        other.is_ever("ran", "VERB")
    with pytest.raises(StoreFormatError, match=r"0\.0\.1"):
        other.union(EverPos.from_lemminflect())


def test_json_files(tmp_path: Path) -> None:
    content = {"VERB": ["Go"], "ADP": ["at"], "NOUN": ["cat"]}
    plain, packed = tmp_path / "ever.json", tmp_path / "ever.json.gz"
    plain.write_text(json.dumps(content), encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert EverPos.from_json(plain) == EverPos.from_json(packed)
    assert EverPos.from_json(plain) == EverPos(frozenset(["go"]), frozenset(["at"]))


@pytest.mark.parametrize(
    "content", ["", "[]", '"VERB"', "{}", '{"NOUN": []}', '{"VERB": "go"}', '{"VERB": [1]}', "{", "\xff"]
)
def test_invalid_files_are_rejected_with_their_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ever.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputFormatError, match=r"ever\.json"):
        EverPos.from_json(path)


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"none\.json"):
        EverPos.from_json(tmp_path / "none.json")
    with pytest.raises(InputFormatError):
        EverPos.from_json(tmp_path)
    broken = tmp_path / "ever.json.gz"
    broken.write_bytes(gzip.compress(b'{"VERB": ["go"]}')[:-9])
    with pytest.raises(InputFormatError):
        EverPos.from_json(broken)


def test_unknown_source_is_rejected() -> None:
    with pytest.raises(StoreFormatError, match="wordnet"):
        EverPos.from_dict({"source": "wordnet"})
