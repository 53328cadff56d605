"""The content of a file decides how it is read; a folder, a pattern and names follow one rule."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from pathlib import Path

import pytest
import zstandard
from support.written_inputs import passages, words, write

from giaann_dask.errors import InputFormatError, InputMissingError, UnreadFormatError
from giaann_dask.text.formats import find_format
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import locate_part, read_parts, read_range, resolve_inputs

ARTICLE = json.dumps({"id": "7", "revid": "3", "url": "https://x.org/?curid=7", "title": "Mill", "text": "A mill."})
TEI = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- made -->\n<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader/>'


@pytest.mark.parametrize(
    "name", ["AA/wiki_00", "AA/wiki_00.bz2", "part-00000", "a.txt", "a.data", "a.json", "a.csv", "a.conllu", "a.1"]
)
def test_json_lines_are_found_by_their_content(tmp_path: Path, name: str) -> None:
    content = f"\ufeff{ARTICLE}\n{ARTICLE}\n".encode()
    path = write(tmp_path / name, bz2.compress(content) if name.endswith("bz2") else content)
    for given in (path, str(tmp_path), f"{tmp_path}/**/*", f"{tmp_path}/**"):
        assert passages(given) == [(0, "A mill."), (1, "A mill.")]
    if not name.endswith("bz2"):
        assert passages(path, read_as="text") == [(0, f"{ARTICLE} {ARTICLE}")]


@pytest.mark.parametrize("name", ["a.txt", "train", "a.conll", "a.conllu"])
def test_conllu_is_found_by_its_content(tmp_path: Path, name: str) -> None:
    (part,) = read_parts([write(tmp_path / name, "# sent_id = 1\n" + words(2))])
    assert part.kind == "conllu"


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.xml", TEI, "TEI"),
        ("a", f"\ufeff\n{TEI}", "TEI"),
        ("a.txt", '<!DOCTYPE html>\n<html lang="en"><body>A mill.', "a page in HTML"),
        ("a.xml", "<novel><chapter>A mill.</chapter></novel>", "XML"),
        ("a.vrt", '<text id="1">\n<s>\nThe\tDT\tthe\nmill\tNN\tmill\n</s>\n</text>\n', "VRT"),
        ("a.vert", '<doc>\n<s>\nThe\tDT\tthe\nmill\tNN\tmill\n</s>\n</doc>\n', "VRT"),
        ("a.cha", "@UTF8\n@Begin\n@Languages:\teng\n*CHI:\tmore mill .\n@End\n", "CHAT"),
        ("b.txt", "@UTF8\n@PID:\t11312/c-1\n@Begin\n", "CHAT"),
        ("a.conllup", "# global.columns = ID FORM UPOS\n1\tA\tDET\n", "CoNLL-U Plus"),
        ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:04.000\nA mill.\n", "WebVTT"),
        ("a.srt", "1\r\n00:00:01,000 --> 00:00:02,000\r\nA mill.\r\n", "SubRip"),
        ("a.tex", "% comment\n\\documentclass[a4paper]{article}\n", "LaTeX"),
        ("a.mrg", "( (S (NP-SBJ (DT The) (NN mill)) (VP (VBZ turns))))\n", "bracketed trees"),
        ("a.db", b"SQLite format 3\0" + b"\1" * 80, "SQLite"),
        ("a.txt", b"%PDF-1.7\n%\xe2\xe3", "PDF"),
        ("a", '[{"text": "A mill."}]', "JSON"),
    ],
)  # fmt: skip
def test_a_format_that_is_not_read_is_named(tmp_path: Path, name: str, content: str | bytes, kind: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UnreadFormatError, match=rf"is .*{kind}.*read_as text"):
        resolve_inputs([path])
    with pytest.raises(InputMissingError, match=f"left out 1 of the folder .*{kind}"):
        resolve_inputs([tmp_path])
    if isinstance(content, str):
        assert passages(path, read_as="text")[0][1].split()[0] == content.lstrip("\ufeff\n").split()[0]


@pytest.mark.parametrize(
    "text",
    [
        "{ The mill } was closed.",
        "[Illustration: the mill]\n\nThe miller sang.",
        "# The mill\n\nThe miller sang.",
        "<unk> was a miller .",
        "= Mill =\n\n The mill @-@ house .",
        "1\tThe miller sang.\n",
        "ORCHARDS grew by the mill.",
        "@miller sings",
        "1\n2\n3 mills",
        "(S) The mill.",
        "...\n",
    ],
)
def test_text_that_resembles_another_format_is_text(text: str) -> None:
    assert find_format("a", "a", text.encode()) == "text"


@pytest.mark.parametrize("text", ["<!-- logo -->\n# Mill", '<p align="center">\n# Mill', "---\ntitle: Mill\n---\n"])
def test_markdown_may_begin_with_elements(text: str) -> None:
    assert find_format("a", "README.md", text.encode()) == "markdown"


# Folders, patterns and names


def test_a_folder_a_pattern_and_names_read_the_same_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "c4"
    line = json.dumps({"url": "https://x.org", "text": "From JSON."})
    write(folder / "part-0.json", f"{line}\n{line}\n")
    write(folder / "part-1.json.gz", f"{line}\n")
    write(folder / "reviews.csv", "id,text\n1,From a table.\n")
    write(folder / "pg1342", "From text.")
    read = ["part-0.json", "part-1.json.gz", "pg1342", "reviews.csv"]
    write(folder / "data.csv", "id,stars\n1,5\n")
    write(folder / "info.json", '{"license": "none"}')
    write(folder / "all.json", '[{"text": "A."}]')
    write(folder / "load.py", "import json\n")
    write(folder / "save.py", "import json\n")
    write(folder / "icon.png", b"\x89PNG\r\n")
    write(folder / "mill", b"\xff\xd8\xff\xe0")
    write(folder / "old", "Gr\xf6\xdfe".encode("latin-1"))
    write(folder / ".hidden", "Hidden.")
    found = passages(*[str(folder / name) for name in read])
    assert [text for _, text in found] == ["From JSON."] * 3 + ["From text.", "From a table."]
    for given in (str(folder), f"{folder}/*", f"{tmp_path}/c4*", folder.as_uri()):
        assert passages(given) == found
    said = "\n".join(record.getMessage() for record in caplog.records)
    for each in (
        "data.csv' has no column 'text'; expected one of its columns: 'id', 'stars'",
        "info.json' has no field 'text'", "all.json' is JSON, but not one object a line",
        "left out 2 of", "load.py' is text with the suffix of other files", "old' is not text in UTF-8",
        f"left out 2 of the folder '{folder}': '{folder}/icon.png' is a picture",
    ):  # fmt: skip
        assert each in said
    assert passages(f"{folder}/*.py") == passages(str(folder / "load.py"), str(folder / "save.py"))


def test_all_of_a_folder_is_taken_as_it_is_where_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("a.py", "b.json", "c.csv"):
        write(tmp_path / name, "{\n text of " + name)
    assert len(passages(str(tmp_path), read_as="text")) == 3


def test_a_changed_file_is_looked_at_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "Text.")
    assert passages(path) == [(0, "Text.")]
    write(tmp_path / "a", ARTICLE)
    os.utime(path, ns=(1, 1))
    assert passages(path) == [(0, "A mill.")]


# Compression


@pytest.mark.parametrize("window_log", [28, 31])
def test_long_windows_of_zstd_are_read_where_they_are_allowed(tmp_path: Path, window_log: int) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, enable_ldm=True)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = write(tmp_path / "a.txt.zst", writer.compress(b"A mill.\n") + writer.flush())
    with pytest.raises(
        InputFormatError, match=rf"window of {1 << window_log - 20} MiB.*set window_log to {window_log}"
    ):
        resolve_inputs([path])
    if window_log == 28:
        assert passages(path, window_log=28) == [(0, "A mill.")]
    with gzip.open(tmp_path / "b.txt.zst", "wb") as file:
        file.write(b"No zstd.")
    with pytest.raises(InputFormatError, match="damaged"):
        resolve_inputs([tmp_path / "b.txt.zst"])


def test_parts_that_other_processes_read_have_the_format_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "wiki_00", (ARTICLE + "\n") * 5)
    options = ReadOptions(part_characters=4)
    parts = list(read_parts([path], options))
    assert len(parts) == 15
    for part in parts:
        located = locate_part(part, options)
        assert located is not None
        assert read_range(located) == part
