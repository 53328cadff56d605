"""Tables and JSON lines are read as libraries read them, with bounded memory."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.written_inputs import fails_in, passages, write

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import InputFormatError, MissingDependencyError
from giaann_dask.text.memory_inputs import memory_input
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import locate_part, read_parts, read_range, resolve_inputs

pa = pytest.importorskip("pyarrow")
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402

TEXTS = ["The miller sang, loud.", 'The "old" mill\n\nstood; still.', "", "A\ttab | bar", "Größe"]


def table(**columns: Any) -> Any:
    return pa.table({"id": list(range(len(TEXTS))), **columns})


def expected(texts: list[str]) -> list[tuple[int, str]]:
    found = [(number, part) for number, text in enumerate(texts) for part in text.split("\n\n") if part]
    return [(number, " ".join(text.split("\n"))) for number, text in found]


# CSV and TSV


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "|"), ("a.tsv", "\t")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv(tmp_path: Path, name: str, delimiter: str, end: str) -> None:
    written = io.StringIO()
    rows = csv.writer(written, delimiter=delimiter, lineterminator=end)
    rows.writerows([["id", "review", "note"], *[[n, text, "a,b;c\td|e"] for n, text in enumerate(TEXTS)]])
    path = write(tmp_path / name, "\ufeff" + written.getvalue())
    assert list(pandas.read_csv(path, sep=delimiter, keep_default_na=False)["review"]) == TEXTS
    assert passages(path, text_field="review") == expected(TEXTS)
    write(tmp_path / f"{name}.gz", "sep=" + delimiter + end + written.getvalue())
    assert passages(f"{path}.gz", text_field="review") == expected(TEXTS)


@given(st.lists(st.text(st.sampled_from('ab ,;\t|"\né'), max_size=12), min_size=1, max_size=6), st.integers(1, 30))
def test_rows_are_those_of_the_csv_module_from_any_part_on(texts: list[str], characters: int) -> None:
    with __import__("tempfile").TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "id"], *[[f"{text}.", n] for n, text in enumerate(texts)]])
        options = ReadOptions(part_characters=characters)
        parts = list(read_parts([path], options))
        whole = memory_input([f"{text}." for text in texts])
        assert [part.passages for part in parts] == [part.passages for part in read_parts([whole], options)]
        for part in parts:
            located = locate_part(part, options)
            assert located is not None
            assert read_range(located) == part


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id,review\n1,A mill.\n", r"has no column 'text'.*'id', 'review'; choose text_field"),
        ("text,id\nA mill, old.,1\n", "line 2 of .* has 3 columns, separated by ','"),
        ("text,id\nA mill.\n", "line 2 of .* has 1 columns"),
        ('text,id\n"A mill,1\nB,2\n', "line 2 of .* a quotation mark that begins a column is not closed"),
        ("text,text\nA,B\n", "several columns 'text'"),
    ],
)
def test_malformed_csv(tmp_path: Path, content: str, said: str) -> None:
    write(tmp_path / "a.csv", content)
    with pytest.raises(InputFormatError, match=said):
        passages(str(tmp_path / "a.csv"))


def test_rows_are_not_kept_in_memory(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"text": ["word " * 2000] * 2000}), tmp_path / "a.parquet", row_group_size=50)
    write(tmp_path / "a.csv", "text\n" + ("word " * 2000 + "\n") * 2000)
    for name in ("a.csv", "a.parquet"):
        options = ReadOptions(part_characters=100_000)
        tracemalloc.start()
        size = sum(part.characters for part in read_parts([tmp_path / name], options))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size > 19_000_000
        assert peak < 8_000_000


# Parquet and Arrow


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_parquet_and_arrow(tmp_path: Path, kind: Any) -> None:
    rows = table(body=pa.array(TEXTS).cast(kind) if "view" not in str(kind) else pa.array(TEXTS, kind))
    pyarrow.parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=2)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=2)
    with pa.OSFile(str(tmp_path / "b"), "wb") as file, pa.ipc.new_file(file, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=2)
    for name in ("a.parquet", "a.arrow", "b"):
        assert passages(str(tmp_path / name), text_field="body") == expected(TEXTS)


def test_feather_and_remote_tables(tmp_path: Path) -> None:
    pyarrow.feather.write_feather(table(text=TEXTS), str(tmp_path / "a.feather"))
    pyarrow.parquet.write_table(table(text=TEXTS), tmp_path / "a.parquet")
    for name in ("a.feather", "a.parquet"):
        fsspec.filesystem("memory").pipe(f"/tables/{name}", (tmp_path / name).read_bytes())
        assert passages(str(tmp_path / name)) == passages(f"memory://tables/{name}") == expected(TEXTS)


def test_damaged_tables_and_those_that_are_compressed(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(table(text=TEXTS), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    assert "cannot be read by pyarrow" in fails_in(tmp_path, InputFormatError, "b.parquet", data[:200])
    assert "is not parquet" in fails_in(tmp_path, InputFormatError, "c.parquet", "id,text\n")
    (tmp_path / "d.parquet.zst").write_bytes(zstandard.compress(data))
    with pytest.raises(InputFormatError, match=r"d\.parquet\.zst' is compressed or a pipe"):
        resolve_inputs([tmp_path / "d.parquet.zst"])


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow.parquet.write_table(table(text=TEXTS), tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'giaann-dask\[parquet\]'"):
        resolve_inputs([tmp_path / "a.parquet"])


# Nested fields


def test_nested_fields(tmp_path: Path) -> None:
    records = [{"id": 1, "content": {"text": text, "kind": "a"}} for text in TEXTS]
    write(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    pyarrow.parquet.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pa.table({"content.text": TEXTS}), tmp_path / "b.parquet")
    for name in ("a.jsonl", "a.parquet", "b.parquet"):
        assert passages(str(tmp_path / name), text_field="content.text") == expected(TEXTS)
    frame = pandas.DataFrame(records)
    for held in (records, frame):
        parts = read_parts([memory_input(held)], ReadOptions(text_field="content.text"))
        assert [passage for part in parts for passage in part.passages] == [text for _, text in expected(TEXTS)]
    write(tmp_path / "c.jsonl", '{"content": {"body": "A."}}\n')
    with pytest.raises(InputFormatError, match=r"has no field 'content\.text'"):
        resolve_inputs([tmp_path / "c.jsonl"], ReadOptions(text_field="content.text"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.arrow"])
def test_ids_are_part_of_the_identity_of_a_record(tmp_path: Path, name: str) -> None:
    rows = pa.table({"key": [7, 8, 7], "text": ["A mill."] * 3})
    if name == "a.jsonl":
        write(tmp_path / name, "".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    elif name == "a.csv":
        rows.to_pandas().to_csv(tmp_path / name, index=False)
    elif name == "a.parquet":
        pyarrow.parquet.write_table(rows, tmp_path / name)
    else:
        pyarrow.feather.write_feather(rows, str(tmp_path / name))
    options = ReadOptions(id_field="key")
    parts = list(read_parts([tmp_path / name], options))
    assert [part.identifier for part in parts] == ["7", "8", "7"]
    first, second, third = (part.fingerprint() for part in parts)
    assert first == third != second
    assert len({part.fingerprint() for part in read_parts([tmp_path / name])}) == 1
    for part in parts:
        located = locate_part(part, options)
        assert (located is None) == (name in ("a.parquet", "a.arrow"))
        assert located is None or read_range(located) == part


# In Python and on the command line


def test_training_on_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["The old miller carried the flour to the baker before the first light came through the window."] * 3
    pyarrow.parquet.write_table(pa.table({"review": texts}), tmp_path / "reviews.parquet")
    write(tmp_path / "reviews.csv", "id;review\n" + "".join(f"{n};{text}\n" for n, text in enumerate(texts)))
    client = gd.connect(workers=0)
    network = gd.train(tmp_path / "reviews.parquet", tmp_path / "net", text_column="review", client=client)
    assert network.training_report.sequences > 0
    client.close()
    table, net = str(tmp_path / "reviews.csv"), str(tmp_path / "net")
    assert run(["train", table, "--text", "review", "--network", net, "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sequences"] == 0
    # Where records have ids, equal texts of different ones are counted each.
    for sequences in (3, 0):
        assert (
            run(["train", table, "--text", "review", "--id", "id", "--network", net, "--workers", "0", "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out)["sequences"] == sequences
    assert run(["train", table, "--text", "review", "--id", "no", "--network", net, "--workers", "0"]) == 2
    assert "has no id in the field 'no'; expected one for each record; choose --id" in capsys.readouterr().err
    assert run(["train", table, "--network", net, "--workers", "0"]) == 2
    assert "expected one of its columns: 'id', 'review'; choose --text-field" in capsys.readouterr().err
