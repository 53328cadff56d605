"""Test tokenizers, parent words of subwords, and sequences of sentences; no cluster."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conformance import read_json
from support.examples import examples
from support.golden_v2 import synthetic_subwords, synthetic_words

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.encoding.lexicon import choose_tokenizer, save_tokenizer
from giaann_dask.errors import GiaannError, InputFormatError, SpecificationError
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import FilterOptions
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import parse_conllu, read_parts
from giaann_dask.text.subword_blocks import SubwordBlockBuilder, find_parents, join_words, word_spans
from giaann_dask.text.tagging import tag_part
from giaann_dask.text.tokenizer import SPLIT_PATTERN, SubwordTokenizer
from giaann_dask.text.tokens import Part, TaggedSentence, TaggedText
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training.target import require_tokenizer

TEXTS = [
    "The miller's daughter didn't carry 12,345 sacks – not one!",
    "Über die Brücke ging  der Müller;\n\nniemand sah ihn … 🙂",
    "the cat and the cats and the catalogue of the cat",
]


@pytest.fixture(scope="module")
def golden_tokenizer(data_folder: Path) -> SubwordTokenizer:
    pytest.importorskip("tokenizers")
    return SubwordTokenizer.from_file(synthetic_subwords(data_folder).tokenizer)


def in_threes(text: TaggedText) -> Iterator[TaggedSentence]:
    """Yield the sequences of three sentences of each document."""
    edges = [0, *text.ends.tolist()]
    for document in sorted(set(text.document.tolist())):
        numbers = np.flatnonzero(text.document == document).tolist()
        for first, last in zip(numbers[::3], [*numbers[2::3], numbers[-1]], strict=False):
            yield text.between(edges[first], edges[last + 1])


def test_sequences_of_the_golden_set(data_folder: Path, golden_tokenizer: SubwordTokenizer) -> None:
    golden = synthetic_subwords(data_folder)
    builder = SubwordBlockBuilder(golden_tokenizer, FilterOptions.of(golden.specification))
    parts = read_parts([str(golden.text)], ReadOptions(newdoc=True, group=3))
    found = [s for part in parts for s in in_threes(tag_part(part, "gold")) if len(s.forms) > 8]
    lines = golden.lines()
    assert len(found) == len(lines) + 1, "one has too many bytes"
    for line in lines:
        sequence = found[line["counted"]]
        assert len(sequence.forms) == line["n_raw"]
        cropped = TaggedSentence(*(field[:80] for field in sequence))
        divided = builder.divide(cropped, join_words(cropped))
        assert b"".join(golden_tokenizer.subwords[each] for each in divided.numbers).decode() == line["text"]
        assert join_words(cropped).startswith(line["text"])
        assert divided.numbers == line["ids"]
        assert divided.parents == line["parent"]
        assert [tag.upos for tag in divided.tags] == line["pos"]
        assert [tag.xpos for tag in divided.tags] == line["tags"]
        assert [golden_tokenizer.names[number] for number in divided.numbers] == line["words"]


@examples(100)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_subwords_are_the_bytes_of_the_text(golden_tokenizer: SubwordTokenizer, text: str) -> None:
    numbers = golden_tokenizer.encode(text)
    assert b"".join(golden_tokenizer.subwords[number] for number in numbers) == text.encode()


def test_encoding_by_ranks_equals_tiktoken(golden_tokenizer: SubwordTokenizer) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {subword: number for number, subword in enumerate(golden_tokenizer.subwords)}
    # Possessive quantifiers, as in published encodings, have another meaning in the package tokenizers.
    pattern = SPLIT_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}{1,3}+").replace(r"\s+|", r"\s++|")
    encoding = tiktoken.Encoding("golden", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ours = SubwordTokenizer.from_ranks(ranks, pattern)
    for text in (*TEXTS, "1234567 3.14159", " ".join(TEXTS)):
        assert ours.encode(text) == encoding.encode_ordinary(text) == golden_tokenizer.encode(text)


def test_learning_is_reproducible_and_pickles(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS * 20), encoding="utf-8")
    file = tmp_path / "learnt.json"
    assert run(["tokenizer", "train", str(tmp_path / "text.txt"), "--max-subwords", "300", "--out", str(file)]) == 0
    learnt = choose_tokenizer("learn:300", [str(tmp_path / "text.txt")], ReadOptions())
    stored = choose_tokenizer(str(file), [], ReadOptions())
    assert learnt is not None
    assert stored is not None
    assert 256 < len(learnt) <= 300
    assert learnt.identity() == stored.identity()
    assert b" the" in learnt.subwords
    with gzip.open(tmp_path / "again.json.gz", "wt", encoding="utf-8") as again:
        again.write(json.dumps(json.loads(stored.content), indent=1))
    assert SubwordTokenizer.from_file(tmp_path / "again.json.gz").identity() == learnt.identity()


def changed(content: str, **fields: Any) -> str:
    return json.dumps(json.loads(content) | fields)


def test_invalid_tokenizers_are_rejected(golden_tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    content = golden_tokenizer.content
    model = json.loads(content)["model"]
    fewer = {letters: number for letters, number in model["vocab"].items() if number}
    for wrong in (
        "{",
        "[]",
        changed(content, model={"type": "Unigram"}),
        changed(content, normalizer={"type": "NFC"}),
        changed(content, pre_tokenizer={"type": "Whitespace"}),
        changed(content, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}),
        changed(content, model=model | {"vocab": fewer}),
        changed(content, model=model | {"dropout": 0.1}),
    ):
        with pytest.raises(InputFormatError, match="the tokenizer cannot be used"):
            SubwordTokenizer(wrong)
    added = [{"id": 0, "content": "the", "special": False}]
    assert SubwordTokenizer(changed(content, added_tokens=added)).identity() == golden_tokenizer.identity()
    for choice in ("learn:many", "learn:256", str(tmp_path / "none.json")):
        with pytest.raises(GiaannError):
            choose_tokenizer(choice, [__file__], ReadOptions())
    for tokens, tokenizer in (("words", golden_tokenizer), ("subwords", None)):
        with pytest.raises(SpecificationError, match="tokenizer"):
            require_tokenizer(gd.Specification(profile="v2", tokens=tokens), tokenizer)


@examples(200)
@given(
    words=st.lists(st.tuples(st.text("aé ", min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 30), max_size=8),
)
def test_parents_share_most_bytes(words: list[tuple[str, bool]], cuts: list[int]) -> None:
    forms, spaces = zip(*words, strict=True)
    sentence = TaggedSentence(forms, forms, forms, forms, spaces)
    text, spans = join_words(sentence).encode(), word_spans(sentence)
    assert [text[begin:end].decode() for begin, end in spans] == list(forms)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parents = find_parents([b - a for a, b in pairwise(edges)], spans)
    for (begin, end), parent in zip(pairwise(edges), parents, strict=True):
        shared = [len(set(range(begin, end)) & set(range(*span))) for span in spans]
        later = [at for at, span in enumerate(spans) if span[0] >= end]
        expected = shared.index(max(shared)) if max(shared) else (later[0] if later else len(spans) - 1)
        assert parent == expected


CONLLU = """\
# newdoc id = a
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tdo\tdo\tAUX\tVBP\t_\t_\t_\t_\t_
2\tn't\tnot\tPART\tRB\t_\t_\t_\t_\t_
3\t!\t!\tPUNCT\t.\t_\t_\t_\t_\tX=1|SpaceAfter=No

# newpar
1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\tSpaceAfter=No
1.1\tnow\tnow\tADV\tRB\t_\t_\t_\t_\t_
2\ton\ton\tADP\tRP\t_\t_\t_\t_\tSpaceAfterwards=No

# newdoc

1\tstop\tstop\tVERB\tVB\t_\t_\t_\t_\t_
"""


def test_spaces_and_documents_of_conllu(tmp_path: Path) -> None:
    sentences = parse_conllu(CONLLU)
    assert [sentence.spaces for sentence in sentences] == [[False, False, True], [False, True], [True]]
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU + "\n" + CONLLU, encoding="utf-8")
    for limit in (1, 1000):
        parts = list(read_parts([path], ReadOptions(part_characters=limit, newdoc=True, group=2)))
        passages = [p for part in parts for p in zip(part.documents, part.passages, strict=True)]
        assert [(document, len(parse_conllu(text))) for document, text in passages] == [
            (0, 2),
            (1, 1),
            (2, 2),
            (3, 1),
        ]
    assert {number for part in read_parts([path]) for number in part.documents} == {0}


def test_sequences_of_plain_text(tmp_path: Path, golden_tokenizer: SubwordTokenizer) -> None:
    paragraphs = ("It rained. The miller didn't go out. He slept.", "The next day was dry.")
    part = Part("text", "text", paragraphs, (0, 0))
    builder = BlockBuilder(EverPos(), FilterOptions(seed_tokens=3, maximum_tokens=9, sentences=3, crop=True))
    builder.add_part(tag_part(part, "lexicon"))
    block = builder.build()
    assert block.document_sentences == ((0, 4),)
    assert block.sentence.tolist() == [0, 3], "paragraphs mean nothing, and the last group is short"
    assert block.offsets[1] <= 9, "cropped"
    subwords = SubwordBlockBuilder(golden_tokenizer, FilterOptions(seed_tokens=3, maximum_tokens=80, sentences=4))
    subwords.add_part(tag_part(part, "lexicon"))
    names = {"concepts": subwords.build().concepts, "features": subwords.build().features}
    built = subwords.build()
    words = [names["concepts" if noun else "features"][s] for s, noun in zip(built.symbol, built.noun, strict=True)]
    assert "".join(words) == " ".join(paragraphs)


def test_columns_are_named_by_subword_text_or_lemma(golden_tokenizer: SubwordTokenizer) -> None:
    words, lemmas = ["Mills", "stood", "by", "water", "mills", "."], ["mill", "stand", "by", "Water", "mill", "."]
    upos = ["NOUN", "VERB", "ADP", "PROPN", "NOUN", "PUNCT"]
    sentence = TaggedSentence(words, lemmas, upos, upos, [True, True, True, True, False, True])
    found, lengths = {}, set()
    for names in ("first", "span", "lemma"):
        options = FilterOptions(seed_tokens=3, maximum_tokens=80, column_names=names)
        builder = SubwordBlockBuilder(golden_tokenizer, options)
        builder.add_part(TaggedText.of([sentence]))
        block = builder.build()
        found[names] = block.concepts
        lengths.add((*block.offsets.tolist(), *block.features))
    assert len(lengths) == 1
    assert found["first"][1] == " water"
    assert found["span"] == ("Mills", "water mills")
    assert found["lemma"] == ("mill", "water_mill")
    assert len(Vocabulary.of_subwords(golden_tokenizer.names, "span").concepts) == 0


def test_dashes_join_nouns_in_v2() -> None:
    words, upos = ["A", "–", "B", "-", "C", "-", "ran"], ["NOUN", "PUNCT", "NOUN", "NOUN", "NOUN", "PUNCT", "VERB"]
    sentence = TaggedSentence(words, words, upos, upos)
    found = []
    for dashes in (True, False):
        builder = BlockBuilder(EverPos(), FilterOptions(seed_tokens=0, maximum_tokens=9, merge_dashes=dashes))
        builder.add_part(TaggedText.of([sentence]))
        block = builder.build()
        found.append((block.surfaces, block.features))
    assert found == [(("a-b-c",), ("-", "ran")), (("a", "b_-_c"), ("–", "-", "ran"))]


@pytest.mark.parametrize("tokens", ["words", pytest.param("subwords", marks=pytest.mark.slow)])
def test_training_on_a_corpus_equals_training_on_its_text(data_folder: Path, tmp_path: Path, tokens: str) -> None:
    golden = synthetic_words(data_folder)
    specification, choice = golden.specification, {"ever_pos": str(golden.ever_pos)}
    if tokens == "subwords":
        pytest.importorskip("tokenizers")
        # Columns are added as they appear, features exist from the beginning.
        specification = dataclasses.replace(specification, tokens="subwords", column_names="span")
        choice = {"tokenizer": str(tmp_path / "small.json")}
        save_tokenizer(SubwordTokenizer.learn(TEXTS, 300), tmp_path / "small.json")
    with gd.connect(workers=0) as client:
        rule = {"client": client, "specification": specification, "text": gd.TextOptions(tagger="gold", **choice)}
        corpus = gd.encode(golden.text, tmp_path / "corpus", max_sequences=30, **rule)
        direct = gd.train(golden.text, tmp_path / "direct", options=gd.TrainingOptions(max_sequences=30), **rule)
        whole = gd.train(corpus.path, tmp_path / "whole", client=client)
        with pytest.raises(SpecificationError, match="profile"):
            gd.train(corpus.path, tmp_path / "other", client=client, specification=gd.Specification())
    assert whole.specification == specification
    files = [each.export(tmp_path / f"{i}").connections for i, each in enumerate((direct, whole))]
    assert files[0].read_bytes() == files[1].read_bytes()
    first, second = (read_json(file.with_suffix(".json")) for file in files)
    assert first == second


def test_the_command_line_sets_every_option(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, network = synthetic_words(data_folder), str(tmp_path / "net")
    rules = {
        "maximum_tokens": "60", "sentences_per_sequence": "2", "branches": "3", "branch_order": "random",
        "segment_counts": "2,4", "proximity_scale": "5", "proximity_exponent": "2", "own_strengths": "segments",
        "lif": "false", "crop": "false", "merge_dashes": "false", "invented_boundaries": "false",
        "column_catch_all": "true", "feature_catch_all": "true",
    }  # fmt: skip
    common = ["--tagger", "gold", "--ever-pos", str(golden.ever_pos), "--workers", "0", "--json", "--network", network]
    asked = [argument for name, value in rules.items() for argument in ("--set", f"{name}={value}")]
    train = ["train", str(golden.text), *common]
    assert run([*train, "--profile", "v2", "--max-sequences", "40", *asked]) == 0
    assert run([*train, "--set", "segment_counts=2,4", "--set", "lif=false"]) == 0, "what is asked for is what it has"
    assert run([*train, "--set", "lif=true"]) == 2
    assert run([*train, "--profile", "v1"]) == 2
    capsys.readouterr()
    assert run(["inspect", network, "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["specification"]
    expected = gd.Specification(
        profile="v2", maximum_tokens=60, sentences_per_sequence=2, branches=3, branch_order="random",
        segment_counts=(2, 4), proximity_scale=5, proximity_exponent=2, own_strengths="segments", lif=False,
        crop=False, merge_dashes=False, invented_boundaries=False, column_catch_all=True, feature_catch_all=True,
    )  # fmt: skip
    assert gd.Specification.from_dict(stored) == expected
    assert run(["inspect", network]) == 0
    assert "lif no, sentences_per_sequence 2" in capsys.readouterr().out


def test_ranks_of_the_golden_file_are_those_of_its_tokenizer(
    shared_folder: Path, golden_tokenizer: SubwordTokenizer
) -> None:
    with gzip.open(shared_folder / "golden" / "v2" / "v2_bpe" / "bpe_ranks.txt.gz", "rt", encoding="ascii") as lines:
        ranks = [base64.b64decode(line.split()[0]) for line in lines]
    assert tuple(ranks) == golden_tokenizer.subwords
