"""Training on texts that Python objects hold, compared with training on files of the same content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.bag
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.api.texts import as_sources
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import EmptyInputError, InputFormatError, InputMissingError, OptionError
from giaann_dask.text.memory_inputs import conllu_sentences
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import parse_conllu, read_parts

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
    return exported(gd.train(records_file(folder), folder / "net", regions=1))


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
    network = gd.train(OBJECTS[kind](), tmp_path / "net", regions=1)
    assert exported(network) == from_records


def test_text_is_known_by_its_content(client: Client, tmp_path: Path) -> None:
    gd.train(TEXTS, tmp_path / "net", regions=1)
    again = gd.train(dask.bag.from_sequence(TEXTS, npartitions=2), tmp_path / "net")
    assert again.training_report.sequences == 0
    (unseen,) = gd.new_inputs([*TEXTS, "A miller sold the flour."], tmp_path / "net")
    assert unseen.name == f"list of {len(TEXTS) + 1} texts"
    assert unseen.new_characters > 0


def test_all_calls_take_texts(client: Client, tmp_path: Path) -> None:
    corpus = gd.encode(TEXTS, tmp_path / "corpus")
    network = gd.train(corpus, tmp_path / "net", regions=1)
    assert network.training_report.sequences == SEQUENCES
    assert network.evaluate(TEXTS).top1 == network.evaluate([corpus]).top1 > 0.2
    both = gd.train([corpus], tmp_path / "listed", regions=1)
    assert exported(both) == exported(network)
    assert network.compare_ngrams(TEXTS, TEXTS).pooled is not None
    with pytest.raises(OptionError, match=r"no training text; .* call compare_ngrams\(text, training\)"):
        network.compare_ngrams(TEXTS)
    with pytest.raises(OptionError, match="prompts is of type DataFrame"):
        network.sessions(pd.DataFrame({"text": TEXTS}))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("sentences", [1, 20])
def test_a_text_given_as_a_path(client: Client, tmp_path: Path, sentences: int) -> None:
    with pytest.raises(FileNotFoundError, match="texts are a list"):
        gd.train("The old miller carried the flour." * sentences, tmp_path / "net")


@pytest.mark.parametrize("given", [[], ["", " \n"], iter(())])
def test_no_text(given: Any, client: Client, tmp_path: Path) -> None:
    with pytest.raises((EmptyInputError, FileNotFoundError)):
        gd.train(given, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def read(given: Any, **options: Any) -> list[str]:
    """Return the passages of texts in memory."""
    return [text for part in read_parts(as_sources(given), ReadOptions(**options)) for text in part.passages]


def dask_frame(frame: Any) -> Any:
    return pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]").from_pandas(frame, npartitions=1)


class Frame(pd.DataFrame):
    """A subclass, as other libraries make."""


TWICE = pd.DataFrame([["A miller sings.", "Ein Müller singt."]], columns=["text", "text"])
LEVELS = pd.DataFrame(
    [["A miller sings.", "Ein Müller singt."]], columns=pd.MultiIndex.from_tuples([("text", "en"), ("text", "de")])
)
# What selecting by a name of two columns gives, too, and what that of a name with two levels does.
AMBIGUOUS = {
    "twice": (lambda: TWICE, r"2 columns 'text'.*'text', 'text'; expected one column; give the column itself"),
    "selected twice": (lambda: TWICE["text"], "2 columns 'text'"),
    "levels": (lambda: LEVELS, r"2 columns 'text'.*\('text', 'en'\), \('text', 'de'\)"),
    "selected levels": (lambda: LEVELS["text"], "no column 'text'; expected one of its columns: 'en', 'de'"),
    "subclass": (lambda: Frame(TWICE), "2 columns 'text'"),
    "dask twice": (lambda: dask_frame(TWICE), "2 columns 'text'"),
    "dask selected twice": (lambda: dask_frame(TWICE)["text"], "2 columns 'text'"),
    "dask selected levels": (lambda: dask_frame(LEVELS)["text"], "Dask finds no column .text. .* 'en', 'de'"),
    "bag of frames": (lambda: dask.bag.from_sequence([TWICE, TWICE]), "record 1 of the Dask Bag is a DataFrame"),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_names_of_columns_are_no_text(kind: str) -> None:
    make, message = AMBIGUOUS[kind]
    with pytest.raises(InputFormatError, match=message):
        read(make())


class Table:
    """An object that iterates over the names of its columns, as frames of other libraries do."""

    columns = ("text", "title")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class Group(Table):
    """An object that iterates over the names of its members, as groups of Zarr and HDF5 do."""

    def keys(self) -> tuple[str, ...]:
        return self.columns


@pytest.mark.parametrize("make", [Table, Group, lambda: {"text": TEXTS}])
def test_tables_of_other_libraries_are_refused(make: Any) -> None:
    with pytest.raises(OptionError, match="give one of its columns"):
        as_sources(make())
    with pytest.raises(OptionError, match=r"holds a DataFrame.*give one of its columns"):
        as_sources(iter([TWICE]))


def test_a_subclass_and_one_level_are_read() -> None:
    assert read(Frame({"text": ["A miller sings."]})) == ["A miller sings."]
    assert read(TWICE.iloc[:, 1]) == ["Ein Müller singt."]
    named = pd.DataFrame([["A miller sings.", 1]], columns=pd.MultiIndex.from_tuples([("text", ""), ("meta", "stars")]))
    assert read(named) == ["A miller sings."]
    assert read(pd.Series(["A miller sings."] * 2, dtype="category")) == ["A miller sings."] * 2


MISSING = [
    None,
    float("nan"),
    np.float32("nan"),
    Decimal("nan"),
    pd.NA,
    pd.NaT,
    np.datetime64("NaT", "ns"),
    np.ma.masked,
]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_missing_values(value: Any) -> None:
    texts, records = ["A miller sings.", value], [{"text": "A miller sings."}, {"text": value}]
    for each in (
        texts,
        iter(texts),
        records,
        pd.Series(["A miller sings.", value], dtype=object),
        np.array(["A", value], dtype=object),
    ):
        with pytest.raises(InputFormatError, match=r"record 2 of the .* is missing"):
            read(each)
    for first in ([value, "A miller sings."], iter([value])):
        with pytest.raises(InputFormatError, match=r"record 1 of the .* is missing"):
            read(first)


def test_missing_values_of_typed_columns() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    frame = pd.DataFrame({"text": ["A miller sings.", None]})
    columns = [frame.convert_dtypes(), frame.astype("category"), dask_frame(frame.convert_dtypes())]
    columns += [frame.astype(pd.ArrowDtype(pyarrow.string())), frame["text"].array, pyarrow.array([None, "A"])]
    for given in columns:
        with pytest.raises(InputFormatError, match=r"record [12] of the .* is missing"):
            read(given)


OTHER = [np.array(["a", "b"]), TWICE, TWICE.iloc[:, 0], ["a"], [None], b"a", (), pd.Index([])]


@pytest.mark.parametrize("value", OTHER, ids=lambda value: type(value).__name__)
def test_other_objects_after_the_first_text(value: Any) -> None:
    for given in (["A miller sings.", value], iter(["A miller sings.", value])):
        with pytest.raises(InputFormatError, match=rf"record 2 of the .* is a {type(value).__name__}"):
            read(given)
    with pytest.raises(InputFormatError, match=r"record 2 .*: the field 'text' is a"):
        read([{"text": "A miller sings."}, {"text": value}])


@pytest.mark.parametrize("kind", ["pandas", "numpy", "arrow"])
@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_are_read_in_every_format(kind: str, streaming: bool) -> None:
    assert read(hugging_face(streaming).with_format(kind)) == TEXTS


def test_datasets_with_a_transform_or_nulls() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hub")
    dataset = datasets.Dataset.from_dict({"text": ["A miller sings.", None]})
    for given in (dataset, dataset.with_format("pandas"), dataset["text"]):
        with pytest.raises(InputFormatError, match=r"record 2 of the .* is missing"):
            read(given)
    loud = dataset.with_transform(lambda batch: {"text": [str(text).upper() for text in batch["text"]]})
    assert read(loud) == ["A MILLER SINGS.", "NONE"]


@pytest.mark.parametrize("make", [lambda: np.array("A miller sings."), lambda: dask.delayed(str)(1)])
def test_what_cannot_be_iterated_over(make: Any) -> None:
    with pytest.raises(OptionError, match=r"inputs is of type (ndarray|Delayed|Table)"):
        as_sources(make())


def test_missing_and_wrong_values(client: Client, tmp_path: Path) -> None:
    for given, message in (
        (pd.Series(["A miller sings.", None]), "record 2 of the pandas Series of 2 rows is missing"),
        (["A miller sings.", 7], "record 2 of the list of 2 texts is a int"),
        ([{"body": "A miller sings."}], "no field 'text'"),
        (pd.DataFrame({"body": ["A miller sings."]}), "no column 'text'"),
        (TWICE, "2 columns 'text'"),
    ):
        with pytest.raises(InputFormatError, match=message):
            gd.train(given, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_an_iterator_is_read_once(client: Client, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="more than once"):
        gd.train(iter(TEXTS), tmp_path / "net", text=gd.TextOptions(ever_pos="corpus"))
    network = gd.train(TEXTS, tmp_path / "net", regions=1, text=gd.TextOptions(ever_pos="corpus"))
    assert network.training_report.sequences == SEQUENCES


def documents(file: Path) -> list[Doc]:
    """Return the sentences of a CoNLL-U file as two spaCy documents."""
    sentences = parse_conllu(file.read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("profile", ["v1", "contexts"])
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
    expected = exported(gd.train(tags, tmp_path / "file", profile=profile, regions=1, text=gold))
    whole = gd.train(documents(tags), tmp_path / "documents", profile=profile, regions=1, count_repeats=True)
    assert exported(whole) == expected
    once = gd.train(documents(tags), tmp_path / "once", profile=profile, regions=1).training_report
    assert (once.sequences, once.repeated) == (4, 1)


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


@pytest.mark.parametrize("given", ["Hello", "The miller sings."])
def test_a_sentence_is_no_file_which_is_said_before_workers_are_started(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from giaann_dask.api import cluster

    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), tmp_path / "net", profile="contexts", max_sequences=5, client=client)
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("workers were started"))
    for call in (network.score, network.evaluate, lambda text: gd.train(text, tmp_path / "other")):
        with pytest.raises(InputMissingError, match=r"is not a file; .* texts are a list|does not exist"):
            call(given)
