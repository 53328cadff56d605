"""Test reading JSON lines, CoNLL-U and datasets, and their errors."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import conllu
import pytest
from support.written_inputs import REST, fails_in, passages, words, write

from giaann_dask.errors import (
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
)
from giaann_dask.lazy import import_optional
from giaann_dask.text import reading
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import DatasetInput, parse_conllu, read_parts, resolve_inputs

# JSON lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    records = [{"body": "One\ntwo.\r\n\r\nThree."}, {"body": ""}, {"body": "Fóur."}]
    first = write(tmp_path / name, "\n\n".join(map(json.dumps, records)))
    second = write(tmp_path / "b.txt", "Five.")
    assert passages(first, second, text_field="body") == [
        (0, "One two."), (0, "Three."), (2, "Fóur."), (3, "Five."),
    ]  # fmt: skip


def test_long_records_are_divided(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "Some words. " * 100}))
    parts = list(read_parts([path], ReadOptions(part_characters=200)))
    assert len(parts) > 5
    assert {document for part in parts for document in part.documents} == {0}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{'text': 1}", "is not JSON"),
        ('{"text": "cut', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('["text"]', "is not an object"),
        ('{"body": "x", "title": "y"}', "has no field 'text'; expected one of its fields: 'body', 'title'"),
        ('{"text": null}', "the field 'text' is missing"),
    ],
)
def test_bad_record(tmp_path: Path, line: str, expected: str) -> None:
    message = fails_in(tmp_path, InputFormatError, "a.jsonl", '{"text": "Good."}\n\n' + line + "\n")
    assert "line 3 of" in message
    assert expected in message


@pytest.mark.parametrize("bad", [r"\u0000", r"\ud800"])
def test_record_with_invalid_text(tmp_path: Path, bad: str) -> None:
    message = fails_in(tmp_path, InputEncodingError, "a.jsonl", '{"text": "a' + bad + '"}')
    assert "line 1 of" in message


# CoNLL-U


def test_conllu_is_grouped_by_whole_sentences(tmp_path: Path) -> None:
    content = "".join(f"# sent_id = {number}\n" + words(3, f"w{number}") for number in range(50))
    path = write(tmp_path / "a.conllu", b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    parts = list(read_parts([path], ReadOptions(part_characters=400)))
    assert len(parts) > 5
    assert all(part.kind == "conllu" and part.characters <= 400 for part in parts)
    assert {document for part in parts for document in part.documents} == {0}
    joined = [passage for part in parts for passage in part.passages]
    assert "\n".join(joined) + "\n" == content
    sentences = [each for passage in joined for each in parse_conllu(passage)]
    assert [each.forms for each in sentences] == [(f"w{number}",) * 3 for number in range(50)]


def test_a_sentence_longer_than_a_part_stays_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", words(30) + words(2))
    parts = list(read_parts([path], ReadOptions(part_characters=50)))
    assert [len(parse_conllu(part.passages[0])[0].forms) for part in parts] == [30, 2]


def test_conllu_without_blank_lines(tmp_path: Path) -> None:
    content = words(100).strip() + "\n"
    message = fails_in(tmp_path, InputFormatError, "a.conllu", content, part_characters=200, line_characters=300)
    assert "blank line after each sentence" in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2 cat cat NOUN", "has 1 tab-separated columns"),
        ("2\tcat\tcat\tNOUN\tNN\t_\t_\t_\t_", "has 9 tab-separated columns"),
        (f"two\tcat\tcat\tNOUN\tNN{REST}", "has the identifier 'two' where word 2"),
        (f"\tcat\tcat\tNOUN\tNN{REST}", "has the identifier '' where word 2"),
        (f"2-\tcat\tcat\tNOUN\tNN{REST}", "has the identifier '2-'"),
        (f"2\t\tcat\tNOUN\tNN{REST}", "has an empty form"),
    ],
)
def test_malformed_conllu(tmp_path: Path, line: str, expected: str) -> None:
    content = f"# comment\n1\tA\ta\tDET\tDT{REST}\n{line}\n\n"
    message = fails_in(tmp_path, InputFormatError, "a.conllu", content)
    assert "line 3 of" in message
    assert expected in message


RANGES = [
    "0-1", "0-0", "1-0", "2-1", "1-1", "3-4", "1-", "-1", "-", "1-2-3", "01-2", "1-02", "+1-2", "1 - 2", "1-2 ", "１-2",
    "²-3", "2-9", "2-4", "9" * 5_000 + "-1", "2-" + "9" * 5_000, "2-1000000000",
    ".1", "2.", "2.0", "2.1", "1.2", "1.01", "01.1", "1.1.1", "0.1", "1." + "9" * 5_000, "9" * 5_000 + ".1", "1,1",
    "1.-1", "0", "-2", "02", "2.5e0", "٢", "3", "9" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("identifier", RANGES, ids=lambda identifier: identifier[:12])
def test_malformed_identifiers(tmp_path: Path, identifier: str) -> None:
    """Before word 2 of a sentence of three words."""
    content = words(1).strip() + f"\n{identifier}\tcats\t_\t_\t_{REST}\n" + "\n".join(words(3).split("\n")[1:])
    message = fails_in(tmp_path, InputFormatError, "a.conllu", content)
    assert len(message) < 500
    assert "line 2 of" in message or "ends after word 3, within a range up to word" in message


def test_ranges_and_empty_nodes(tmp_path: Path) -> None:
    identifiers = ["0.1", "0.2", "1-2", "1", "1.1", "2", "2.1", "2.2", "3-3", "3", "4-6", "4", "5", "6", "6.1"]
    spaced = {"1-2": "_", "3": "_"}
    lines = [f"{each}\tw{each}{REST}\t_\t_\t{spaced.get(each, 'SpaceAfter=No')}" for each in identifiers]
    ((_, passage),) = passages(write(tmp_path / "a.conllu", "\n".join(lines)))
    (sentence,) = parse_conllu(passage)
    assert sentence.forms == tuple(f"w{number}" for number in range(1, 7))
    assert sentence.spaces == [False, True, False, False, False, True]
    for wrong, identifier in ((lines[8], "3-4"), (lines[2], "2-3")):
        line = identifier + wrong.removeprefix(wrong[:3])
        content = "\n".join([lines[2], lines[3], line])
        assert f"'{identifier}' where word 2" in fails_in(tmp_path, InputFormatError, "b.conllu", content)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", "\r\r\n", "mixed"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_marks_of_joined_files(tmp_path: Path, ending: str, mark: str) -> None:
    ends = cycle(["\r", "\n", "\r\n"] if ending == "mixed" else [ending])

    def ended(text: str) -> str:
        # A blank line ends as the line before it: a newline after a carriage return is the same end.
        found, end = [], "\n"
        for line in text.split("\n")[:-1]:
            end = next(ends) if line else end
            found.append(line + end)
        return "".join(found)

    first, second = words(3, "cat") + "# text\n" + words(2, "dog"), words(1, "owl") * 2
    path = write(tmp_path / "a.conllu", mark + ended(first) + mark + ended(second))
    plain = write(tmp_path / "plain.conllu", first + second)
    assert passages(path) == passages(plain)
    assert len(parse_conllu("\n".join(text for _, text in passages(path)))) == 4
    records = '{"text": "One."}\n\n{"text": "Two."}\n'
    assert passages(write(tmp_path / "a.jsonl", mark + ended(records) + mark + ended(records))) == [
        (number, text) for number, text in enumerate(["One.", "Two.", "One.", "Two."])
    ]
    text = write(tmp_path / "a.txt", f"{mark}One{next(ends)}and two.{mark} Three.{next(ends)}{mark}{mark}Four.")
    assert passages(text) == [(0, "One and two. Three. Four.")]


def test_a_long_file_of_lines_that_end_with_carriage_returns(tmp_path: Path) -> None:
    """Longer than a line may be."""
    path = write(tmp_path / "a.conllu", words(1).replace("\n", "\r") * 40)
    assert len(passages(path, line_characters=100, part_characters=50)) == 40
    path = write(tmp_path / "a.txt", "A miller.\r\r" * 40 + "\r" * 5_000 + "End.")
    assert len(passages(path, line_characters=100)) == 41


def test_parse_keeps_syntactic_words_unchanged() -> None:
    lines = [
        "# text = vámonos", f"1-2\tvámonos\t_\t_\t_{REST}", f"1\tvamos\tir\tVERB\t_{REST}",
        f"2\tnos\t_\tPRON\tPRP{REST}", f"2.1\tempty\tempty\tVERB\tVB{REST}",
        f"3\t20 000\t20 000\tNUM\tCD{REST}",
        "", "# only a comment", "", "", f"1\tEnd\tend\tNOUN\tNN{REST}",
    ]  # fmt: skip
    first, second = parse_conllu("\n".join(lines))
    assert first.forms == ("vamos", "nos", "20 000")
    assert first.lemmas == ("ir", "_", "20 000")
    assert first.upos == ("VERB", "PRON", "NUM")
    assert first.xpos == ("_", "PRP", "CD")
    assert second.forms == ("End",)


def test_missing_blank_line_is_detected(tmp_path: Path) -> None:
    content = words(2).strip() + "\n" + words(2)
    message = fails_in(tmp_path, InputFormatError, "a.conllu", content)
    assert "line 3 of" in message
    assert "identifier '1' where word 3 should follow" in message


def same_as_conllu_package(path: Path) -> int:
    expected = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for tokens in conllu.parse_incr(stream):
            syntactic = [token for token in tokens if isinstance(token["id"], int)]
            # In some columns, the package converts the mark of an empty field to None.
            expected.append(
                tuple(
                    tuple("_" if token[name] is None else token[name] for token in syntactic)
                    for name in ("form", "lemma", "upos", "xpos")
                )
            )
    parts = read_parts([str(path)], ReadOptions(part_characters=20_000))
    found = [tuple(sentence[:4]) for part in parts for passage in part.passages for sentence in parse_conllu(passage)]
    assert found == expected
    return len(found)


def test_agrees_with_the_conllu_package_on_synthetic_text(data_folder: Path) -> None:
    assert same_as_conllu_package(data_folder / "synthetic" / "test.conllu.gz") > 10
    assert same_as_conllu_package(data_folder / "synthetic" / "train.conllu.gz") > 100


def test_agrees_with_the_conllu_package_on_real_text(shared_folder: Path) -> None:
    assert same_as_conllu_package(shared_folder / "data" / "ewt" / "dev.conllu.gz") == 2001
    assert same_as_conllu_package(shared_folder / "data" / "ewt" / "test.conllu.gz") == 2077


# Datasets


class Hub:
    """Fake of the package ``datasets``."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.calls: list[Any] = []

    def load_dataset(self, name: str, config: str | None, **options: Any) -> Iterator[Any]:
        self.calls.append((name, config, options))
        if name == "no/such":
            raise ConnectionError("Couldn't reach 'no/such'\non the Hub")
        return self.stream()

    def stream(self) -> Iterator[Any]:
        for record in self.records:
            if isinstance(record, Exception):
                raise record
            yield record


def use_hub(monkeypatch: pytest.MonkeyPatch, *records: Any) -> Hub:
    hub = Hub(list(records))
    monkeypatch.setattr(reading, "import_optional", lambda *_: hub)
    return hub


def test_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, {"body": "One.\n\nTwo."}, {"body": "Three."})
    found = passages("hf:owner/name:en", split="test", text_field="body")
    assert found == [(0, "One."), (0, "Two."), (1, "Three.")]
    assert hub.calls == [("owner/name", "en", {"split": "test", "streaming": True})]
    assert next(read_parts(["hf:owner/name"], ReadOptions(text_field="body"))).source == "hf:owner/name"


def test_dataset_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, {"text": "a" * 60}, {"text": "b" * 60}, OSError("connection lost"))
    parts = read_parts(["hf:x"], ReadOptions(part_characters=100))
    assert next(parts).passages == ("a" * 60,)
    with pytest.raises(InputFormatError, match=r"record 3 of 'hf:x' cannot be read .*connection lost"):
        next(parts)


def test_dataset_without_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, {"text": "Good."}, {"title": "Bad."})
    with pytest.raises(InputFormatError, match="record 2 of 'hf:x' has no field 'text'"):
        passages("hf:x")


def test_dataset_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch)
    good = write(tmp_path / "a.txt", "Text.")
    with pytest.raises(InputMissingError, match=r"'hf:no/such', split 'train'.*Couldn't reach"):
        read_parts([good, "hf:no/such"])


@pytest.mark.parametrize("given_input", ["hf:", "hf::en", "hf:name:"])
def test_dataset_without_a_name(given_input: str) -> None:
    with pytest.raises(InputMissingError, match="names no dataset"):
        resolve_inputs([given_input])


def test_dataset_of_local_files(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "data"
    write(folder / "train.jsonl", '{"text": "One."}\n{"text": "Two."}\n')
    assert resolve_inputs([f"hf:{folder}"]) == [DatasetInput(str(folder))]
    assert passages(f"hf:{folder}") == [(0, "One."), (1, "Two.")]
    # As the error for a table says.
    write(tmp_path / "table" / "a.csv", "id,body\n1,One.\n2,Two.\n")
    write(tmp_path / "array" / "a.json", '[{"body": "One."}, {"body": "Two."}]')
    assert resolve_inputs([f"hf:{folder.as_uri()}"]) == [DatasetInput(str(folder))]
    assert resolve_inputs(["hf:~/data"]) == [DatasetInput(os.path.expanduser("~/data"))]
    for kind in ("table", "array"):
        assert passages(f"hf:{tmp_path / kind}", text_field="body") == [(0, "One."), (1, "Two.")]
    with pytest.raises(InputMissingError, match="Bad split"):
        passages(f"hf:{folder}", split="nosuch")


def test_missing_package() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'giaann-dask\[hub\]'") as caught:
        import_optional("no_such_package.part", "hub")
    assert "'no_such_package'" in str(caught.value)


def test_missing_datasets_package_is_reported_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"giaann-dask\[hub\]"):
        read_parts(["hf:name"])
