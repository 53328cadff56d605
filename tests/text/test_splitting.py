"""Sentences and tokens of running text."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import split_sentences

from giaann_dask.text import splitting
from giaann_dask.text.reading import read_parts


def sentences(passage: str) -> list[str]:
    return [" ".join(sentence) for sentence in split_sentences([passage])[0]]


@pytest.mark.parametrize(
    ("passage", "expected"),
    [
        ("One cat. Two cats! Three?", ["One cat .", "Two cats !", "Three ?"]),
        ("Mr. Bennet met Mrs. Long. St. Petersburg", ["Mr. Bennet met Mrs. Long .", "St. Petersburg"]),
        ("Capt. Brown, Lieut. Low and Mme. Roy.", ["Capt. Brown , Lieut. Low and Mme. Roy ."]),
        ("J. K. Poole left the U.S. today.", ["J. K. Poole left the U.S. today ."]),
        ("Cats, etc. were there. Yes, etc. No.", ["Cats , etc. were there .", "Yes , etc.", "No ."]),
        ("Memorandum No. 178. No. Never.", ["Memorandum No . 178 .", "No .", "Never ."]),
        ("“Go.” He went.", ["“ Go . ”", "He went ."]),
        ('He said "Go." "No," she said.', ['He said " Go . "', '" No , " she said .']),
        ('" Go . " He went .', ['" Go . "', "He went ."]),
        ('He went . " Go . "', ["He went .", '" Go . "']),
        ("She left. (He stayed.) Then [sic.] it", ["She left .", "( He stayed . )", "Then [ sic . ] it"]),
        ("“It’s ‘he.’” They ran. ’Tis so.", ["“ It ’s ‘ he . ’ ”", "They ran .", "’ Tis so ."]),
        ("“Why?” asked he. “So!” she said.", ["“ Why ? ” asked he .", "“ So ! ” she said ."]),
        ("How pleased I am! and it is good.", ["How pleased I am ! and it is good ."]),
        ("it rained. then it stopped.", ["it rained .", "then it stopped ."]),
        ("Wait... then go... He went… No", ["Wait ... then go ...", "He went …", "No"]),
        ("What?! Never!!! Yes", ["What ? !", "Never ! ! !", "Yes"]),
        ("He cried.—“Stop!—” and fell—“never.”", ["He cried . —", "“ Stop ! — ” and fell — “ never . ”"]),
        ("to Mr. Darcy:--but let me", ["to Mr. Darcy : -- but let me"]),
        ("his character. _Her_ mind.", ["his character .", "_ Her _ mind ."]),
        ("Yahoo!, the end.Then more", ["Yahoo ! , the end .", "Then more"]),
        ("CHAPTER XII", ["CHAPTER XII"]),
        (" two\n  lines \u00a0 here\t. ", ["two lines here ."]),
        ("", []),
        (" \n", []),
        (". . .", [". . ."]),
    ],
)  # fmt: skip
def test_sentences(passage: str, expected: list[str]) -> None:
    assert sentences(passage) == expected


def test_each_passage_has_its_own_sentences() -> None:
    assert split_sentences(["A heading", "", "One. Two."]) == [
        [["A", "heading"]],
        [],
        [["One", "."], ["Two", "."]],
    ]
    assert split_sentences([]) == []


@given(st.text(max_size=400))
def test_nothing_but_white_space_is_lost(passage: str) -> None:
    (found,) = split_sentences([passage])
    assert all(found)
    assert all(token and not token.isspace() for sentence in found for token in sentence)
    assert "".join("".join(sentence) for sentence in found) == "".join(passage.split())


@given(st.lists(st.sampled_from([*"“”\"'’.!?,—()_", "he", "He", " ", "...", "etc.", "2"]), max_size=40))
def test_nothing_is_lost_among_marks(pieces: list[str]) -> None:
    passage = "".join(pieces)
    (found,) = split_sentences([passage])
    assert "".join("".join(sentence) for sentence in found) == "".join(passage.split())


@pytest.mark.parametrize("piece", ["_", "(", "!", "😀", "a", "a)", "?(", "http://a.b/"])
def test_long_stretches_take_linear_time(piece: str) -> None:
    passage = "A cat. " + piece * (30_000 // len(piece)) + " A dog."
    began = time.process_time()
    (found,) = split_sentences([passage])
    # Without breaking the stretch, 60,000 brackets take more than five minutes.
    assert time.process_time() - began < 20
    assert "".join("".join(sentence) for sentence in found) == "".join(passage.split())
    assert found[-1][-3:] == ["A", "dog", "."]


def test_passages_longer_than_a_pipeline_allows() -> None:
    (found,) = split_sentences(["One more cat sat down. " * 50_000])
    assert found == [["One", "more", "cat", "sat", "down", "."]] * 50_000


def test_threads_share_the_tokenizer() -> None:
    splitting.shared_tokenizer.cache_clear()
    passages = [f"Word{number} met Mr. Word{number + 1}. They left." for number in range(400)]
    expected = split_sentences(passages)
    splitting.shared_tokenizer.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda passage: split_sentences([passage])[0], passages))
    assert found == expected


def test_novels(shared_folder: Path) -> None:
    part = next(read_parts([str(shared_folder / "data" / "books" / "pride-and-prejudice.txt.gz")]))
    found = [sentence for passage in split_sentences(part.passages) for sentence in passage]
    lengths = [len(sentence) for sentence in found]
    assert 20 < sum(lengths) / len(lengths) < 30
    assert sum(length > 80 for length in lengths) < len(lengths) / 50
    assert not any(sentence[-1] in {"Mr.", "Mrs.", "“"} for sentence in found)
    assert not any(sentence[0] in {"”", ",", ";", ")"} for sentence in found)
