"""Training on texts that Python objects hold, compared with training on files of the same content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.bag
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.api.texts import as_sources
from giaann_dask.data import sample_test_text
from giaann_dask.errors import EmptyInputError, InputFormatError, OptionError
from giaann_dask.text.conllu import parse_spaced_conllu
from giaann_dask.text.memory_inputs import conllu_sentences
from giaann_dask.text.reading import read_parts

if TYPE_CHECKING:
    from spacy.tokens import Doc

SENTENCES = sample_test_text().read_text(encoding="utf-8").split("\n")
TEXTS = [line for line in SENTENCES if line.strip()]
SEQUENCES = 40


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as client:
        yield client


@pytest.fixture(scope="module")
def from_records(client: Client, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export of a network trained on a file of JSON lines, of which each is a document."""
    folder = tmp_path_factory.mktemp("records")
    return exported(gd.train(records_file(folder), folder / "net"))


def records_file(folder: Path) -> Path:
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    return file


def exported(network: gd.Network) -> bytes:
    return network.export(network.path.with_suffix(".npz")).connections.read_bytes()


def hugging_face(streaming: bool) -> Any:
    datasets = pytest.importorskip("datasets", reason="needs the extra hub")
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    return dataset.to_iterable_dataset() if streaming else dataset


def dask_column() -> Any:
    return pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]").from_pandas(
        pd.Series(TEXTS), npartitions=3
    )


OBJECTS = {
    "list": lambda: TEXTS,
    "tuple": lambda: tuple(TEXTS),
    "iterator": lambda: iter(TEXTS),
    "generator": lambda: (text for text in TEXTS),
    "mappings": lambda: [{"text": text, "title": "none"} for text in TEXTS],
    "array": lambda: np.array(TEXTS, dtype=object),
    "pandas column": lambda: pd.Series(TEXTS),
    "pandas frame": lambda: pd.DataFrame({"title": "none", "text": TEXTS}),
    "bag": lambda: dask.bag.from_sequence(TEXTS, npartitions=3),
    "bag of mappings": lambda: dask.bag.from_sequence([{"text": text} for text in TEXTS], npartitions=3),
    "dask column": dask_column,
    "dataset": lambda: hugging_face(streaming=False),
    "streaming dataset": lambda: hugging_face(streaming=True),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_read_as_a_file_is(kind: str, client: Client, tmp_path: Path) -> None:
    read = [part.fingerprint() for part in read_parts(as_sources(OBJECTS[kind]()))]
    assert read == [part.fingerprint() for part in read_parts([records_file(tmp_path)])]


@pytest.mark.parametrize("kind", ["iterator", "bag of mappings", "streaming dataset"])
def test_objects_train_as_a_file_does(kind: str, client: Client, from_records: bytes, tmp_path: Path) -> None:
    network = gd.train(OBJECTS[kind](), tmp_path / "net")
    assert exported(network) == from_records


def test_text_is_known_by_its_content(client: Client, tmp_path: Path) -> None:
    gd.train(TEXTS, tmp_path / "net")
    again = gd.train(dask.bag.from_sequence(TEXTS, npartitions=2), tmp_path / "net")
    assert again.training_report.sequences == 0
    (unseen,) = gd.new_inputs([*TEXTS, "A miller sold the flour."], tmp_path / "net")
    assert unseen.name == f"list of {len(TEXTS) + 1} texts"
    assert unseen.new_characters > 0


def test_all_calls_take_texts(client: Client, tmp_path: Path) -> None:
    corpus = gd.encode(TEXTS, tmp_path / "corpus")
    network = gd.train(corpus, tmp_path / "net")
    assert network.training_report.sequences == SEQUENCES
    assert network.evaluate(TEXTS).top1 == network.evaluate([corpus]).top1 > 0.2
    both = gd.train([corpus], tmp_path / "listed")
    assert exported(both) == exported(network)
    assert network.compare_ngrams(TEXTS, TEXTS).pooled is not None


def test_a_list_of_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("A miller sings.", encoding="utf-8")
    for names in (["books/*.txt"], [str(tmp_path)], [str(tmp_path / "a b")], ["hf:wikitext", "more.jsonl.gz"]):
        with pytest.raises(OptionError, match=r"names of files.*Files"):
            as_sources(names)
    # One of them is a text.
    assert as_sources(["notes.txt", "The miller wrote notes."])[0].characters == 32  # type: ignore[union-attr]
    assert as_sources(gd.Files(["books/*.txt", "hf:wikitext"])) == ("books/*.txt", "hf:wikitext")
    assert as_sources([Path("a.txt"), Path("b.txt")]) == ("a.txt", "b.txt")
    with pytest.raises(OptionError, match="paths and a str"):
        as_sources([Path("a.txt"), "A miller sings."])


@pytest.mark.parametrize("given", [b"bytes", {"train": TEXTS}, {"a set"}, 7, [7], [b"bytes"], iter([Path("a.txt")])])
def test_other_objects_are_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="inputs"):
        as_sources(given)


def test_a_text_given_as_a_path(client: Client, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="texts are a list"):
        gd.train("The old miller carried the flour.", tmp_path / "net")


@pytest.mark.parametrize("given", [[], ["", " \n"], iter(())])
def test_no_text(given: Any, client: Client, tmp_path: Path) -> None:
    with pytest.raises((EmptyInputError, FileNotFoundError)):
        gd.train(given, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_missing_and_wrong_values(client: Client, tmp_path: Path) -> None:
    for given, message in (
        (pd.Series(["A miller sings.", None]), "record 2 of the pandas Series of 2 rows is missing"),
        (["A miller sings.", 7], "record 2 of the list of 2 texts is a int"),
        ([{"body": "A miller sings."}], "no field 'text'"),
        (pd.DataFrame({"body": ["A miller sings."]}), "no column 'text'"),
    ):
        with pytest.raises(InputFormatError, match=message):
            gd.train(given, tmp_path / "net")


def test_an_iterator_is_read_once(client: Client, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="more than once"):
        gd.train(iter(TEXTS), tmp_path / "net", text=gd.TextOptions(ever_pos="corpus"))
    network = gd.train(TEXTS, tmp_path / "net", text=gd.TextOptions(ever_pos="corpus"))
    assert network.training_report.sequences == SEQUENCES


def documents(file: Path) -> list[Doc]:
    """Return the sentences of a CoNLL-U file as two spaCy documents."""
    sentences = parse_spaced_conllu(file.read_text(encoding="utf-8"), file.name)
    half = len(sentences) // 2
    return [document(part) for part in (sentences[:half], sentences[half:])]


def document(sentences: list[Any]) -> Doc:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    def joined(field: str) -> list[Any]:
        return [value for sentence in sentences for value in getattr(sentence, field)]

    starts = [number == 0 for sentence in sentences for number in range(len(sentence.forms))]
    spaces, words = joined("spaces"), joined("forms")
    return Doc(
        Vocab(),
        words=words,
        spaces=spaces,
        tags=joined("xpos"),
        pos=[each if each != "_" else "" for each in joined("upos")],
        lemmas=joined("lemmas"),
        sent_starts=starts,
    )


@pytest.mark.parametrize("profile", ["v1", "v2", "best"])
def test_spacy_documents_train_as_their_tags_do(profile: Any, client: Client, tmp_path: Path) -> None:
    tags = tmp_path / "tags.conllu"
    tagged = [
        ("The", "the", "DET", "DT"),
        ("old", "old", "ADJ", "JJ"),
        ("miller", "miller", "NOUN", "NN"),
        ("carried", "carry", "VERB", "VBD"),
        ("the", "the", "DET", "DT"),
        ("flour", "flour", "NOUN", "NN"),
        ("to", "to", "ADP", "IN"),
        ("the", "the", "DET", "DT"),
        ("baker", "baker", "NOUN", "NN"),
        (".", ".", "PUNCT", "."),
    ]
    lines = "".join(
        "\t".join((str(number), *fields, "_", "_", "_", "_", "SpaceAfter=No" if fields[0] == "baker" else "_")) + "\n"
        for number, fields in enumerate(tagged, start=1)
    )
    half = "# newdoc\n" + f"{lines}\n" * 4
    tags.write_text(half * 2, encoding="utf-8")
    gold = gd.TextOptions(tagger="gold")
    expected = exported(gd.train(tags, tmp_path / "file", profile=profile, text=gold))
    assert exported(gd.train(documents(tags), tmp_path / "documents", profile=profile)) == expected


def test_documents_without_annotations(tmp_path: Path, client: Client) -> None:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    bare = Doc(Vocab(), words=["The", "miller", "sings", "."])
    with pytest.raises(InputFormatError, match="no sentences"):
        gd.train([bare], tmp_path / "net")
    bare[0].is_sent_start = True
    with pytest.raises(InputFormatError, match=r"no sentences|no parts of speech"):
        conllu_sentences(bare)
    with pytest.raises(InputFormatError, match="only spaCy Docs"):
        conllu_sentences("The miller sings.")
