"""Test resolving inputs, reading plain text, errors of files and lines, and reproducible parts."""

from __future__ import annotations

import gzip
import os
import pickle
import tempfile
import tracemalloc
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.written_inputs import fails_in, passages, write

from giaann_dask.errors import (
    EmptyInputError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    OptionError,
)
from giaann_dask.text import reading
from giaann_dask.text.input_files import LineReader
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts, resolve_inputs
from giaann_dask.text.tokens import Part

# Plain text


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.anything"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_paragraphs(tmp_path: Path, name: str, ending: str, mark: bytes) -> None:
    text = ending.join(["", "One", "  two. ", "", " \t", "", "Thrée – four."]).encode()
    assert passages(write(tmp_path / name, mark + text)) == [(0, "One two."), (0, "Thrée – four.")]


def test_each_file_is_a_document(tmp_path: Path) -> None:
    names = [write(tmp_path / name, f"{name}.\n\nMore.") for name in ("b.txt", "a.txt")]
    parts = list(read_parts(names))
    assert [(part.source, part.kind, part.documents) for part in parts] == [
        (names[0], "text", (0, 0)),
        (names[1], "text", (1, 1)),
    ]


def test_long_paragraphs_are_divided_after_sentences(tmp_path: Path) -> None:
    sentences = [f"This is sentence number {number} of the text." for number in range(200)]
    path = write(tmp_path / "a.txt", " ".join(sentences))
    parts = list(read_parts([path], ReadOptions(part_characters=1000)))
    assert len(parts) > 7
    assert all(500 < part.characters <= 1000 for part in parts[:-1])
    assert all(passage.endswith(".") for part in parts for passage in part.passages)
    assert " ".join(passage for part in parts for passage in part.passages) == " ".join(sentences)


@given(
    st.text(st.sampled_from("ab. \n\r\té"), max_size=300).filter(str.strip),
    st.integers(1, 40),
)
def test_no_text_is_lost_and_no_part_is_too_large(text: str, limit: int) -> None:
    lines = text.replace("\r", "\n").split("\n")
    paragraphs = list(reading.paragraphs(lines, limit))
    assert "".join("".join(paragraphs).split()) == "".join(text.split())
    assert all(1 <= len(paragraph) <= limit and paragraph == paragraph.strip() for paragraph in paragraphs)


_LETTERS = st.sampled_from(["a", "é", "😀", "\n", "\r", "\ufeff"])


@given(st.text(_LETTERS, max_size=60), st.integers(1, 9), st.sampled_from([b"", b"\0", b"\xe9"]))
def test_lines_and_their_errors_do_not_depend_on_the_blocks_that_are_read(text: str, block: int, fault: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(write(Path(folder) / "a.txt", text.encode() + fault))
        # The first block, here the whole file, is decoded line by line.
        expected = _read_lines(LineReader(path, 20))
        assert _read_lines(LineReader(path, 20, block_bytes=block)) == expected


def _read_lines(reader: LineReader) -> tuple[list[tuple[int, int, str]], str]:
    """Return numbers, offsets and texts of the lines of a file, and the error that ends reading it."""
    found = []
    try:
        found.extend((reader.number, reader.offset, line) for line in reader)
    except (InputEncodingError, InputFormatError) as error:
        return found, str(error)
    return found, ""


def test_parts_depend_on_the_content_of_their_file_alone(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {number} has some words." for number in range(300))
    one, two = write(tmp_path / "one.txt", text), write(tmp_path / "two.txt.gz", text)
    other = write(tmp_path / "other.txt", "Something else.")
    options = ReadOptions(part_characters=500)

    def prints(*inputs: str) -> list[bytes]:
        return [part.fingerprint() for part in read_parts(inputs, options)]

    alone = prints(one)
    assert len(set(alone)) > 15
    assert prints(one) == alone == prints(two)
    assert prints(other, one)[1:] == alone
    write(tmp_path / "one.txt", text + " And more.")
    assert prints(one)[:-1] == alone[:-1]
    assert prints(one)[-1] != alone[-1]


def test_parts_are_made_while_the_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"Good text.\n\n" * 1000 + b"\xff\n")
    parts = read_parts([path], ReadOptions(part_characters=100))
    assert next(parts).passages == ("Good text.",) * 10
    with pytest.raises(InputEncodingError):
        list(parts)


# Resolving inputs


def test_folder_is_sorted_and_filtered(tmp_path: Path) -> None:
    for name in (
        "b/x.txt", "b.md", "a/z.conllu.gz", "a/y.JSONL", "c.text.gz", "d.ndjson",
        ".hidden.txt", ".git/x.txt", "picture.png", "a/table.csv", "x.gz",
    ):  # fmt: skip
        write(tmp_path / name, b"\x89PNG\r\n" if name == "picture.png" else "")
    found = [path.relative_to(tmp_path).as_posix() for path in resolve_inputs([str(tmp_path)])]  # type: ignore[union-attr]
    assert found == [
        "a/table.csv", "a/y.JSONL", "a/z.conllu.gz", "b/x.txt", "b.md", "c.text.gz", "d.ndjson", "x.gz",
    ]  # fmt: skip


def test_patterns_are_sorted_and_give_each_file_once(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/3.txt", "a/3.dat"):
        write(tmp_path / name, "Text.")
    found = resolve_inputs([str(tmp_path / "**")])
    assert [Path(str(path)).name for path in found] == ["3.txt", "1.txt", "2.txt"]
    assert resolve_inputs([str(tmp_path / "a" / "*.dat")]) == resolve_inputs([str(tmp_path / "a" / "3.dat")])
    assert len(resolve_inputs([str(tmp_path / "?" / "[12].txt")])) == 2


def names_in(folder: Path, *inputs: str) -> list[str]:
    """Return what inputs are resolved to, relative to a folder."""
    return [Path(str(each)).relative_to(folder).as_posix() for each in resolve_inputs(inputs)]


def linked_folder(folder: Path) -> Path:
    """Write files, and links that make loops, second ways to a file, and a way to what lies beside the folder."""
    books = folder / "books"
    for name in ("books/a/one.txt", "books/b/two.txt", "beside/three.txt"):
        write(folder / name, f"Text of {name}.")
    for link, target in (
        ("books/a/up", ".."),
        ("books/b/again", "../b"),
        ("books/a/loop", "loop"),
        ("books/b/other", "../a"),
        ("books/linked", "../beside"),
        ("books/a/0.txt", "../b/two.txt"),
        ("books/broken", "nowhere"),
        ("books/broken.txt", "nowhere.txt"),
        ("books/.hidden", "../beside"),
    ):
        os.symlink(target, folder / link)
    os.link(books / "a" / "one.txt", books / "b" / "hard.txt")
    return books


# The shortest way to a file names it, of several the first.
ONCE = ["books/a/0.txt", "books/a/one.txt", "books/linked/three.txt"]


@pytest.mark.parametrize("pattern", ["", "/", "/**", "/**/", "/**/*.txt", "/**/**/*.txt", "/*"])
def test_folders_and_patterns_follow_links_and_give_each_file_once(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    books = linked_folder(tmp_path)
    assert names_in(tmp_path, f"{books}{pattern}") == ONCE
    (tmp_path / "list").write_text(f"{books}{pattern}\n{books}/b/two.txt\n{books}/a/up/b\n")
    assert names_in(tmp_path, f"@{tmp_path}/list", str(books / "b" / "hard.txt")) == ONCE
    assert len(passages(str(books), f"{books}{pattern}")) == len(ONCE)
    if pattern in ("", "/"):
        assert "broken: it is a link to 'nowhere', which does not exist" in caplog.text
        assert "names of files that are read under another name, such as" in caplog.text


def test_many_loops_take_no_time(tmp_path: Path) -> None:
    """As many ways as 2 to the power of 30 lead to the file."""
    write(tmp_path / "a.txt", "Text.")
    for number in range(30):
        os.symlink(".", tmp_path / f"loop{number}")
    assert names_in(tmp_path, str(tmp_path)) == names_in(tmp_path, f"{tmp_path}/**/*.txt") == ["a.txt"]


def test_a_pattern_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked_folder(tmp_path)
    monkeypatch.chdir(tmp_path / "books")
    assert list(map(str, resolve_inputs(["**/t*.txt"]))) == ["b/two.txt", "linked/three.txt"]
    assert list(map(str, resolve_inputs(["."]))) == [name.removeprefix("books/") for name in ONCE]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Text.")
    assert passages(path, path, f"{tmp_path}/./a.txt", str(tmp_path)) == [(0, "Text.")]
    passed: set[Hashable] = set()
    assert [part.passages for part in read_parts([path], None, passed)] == [("Text.",)]
    assert list(read_parts([path], None, passed)) == []


# Files in folders that are no text


def test_documents_of_many_kinds_in_a_folder(tmp_path: Path) -> None:
    names = ["A.RST", "B.Md.gz", "c.markdown", "d.rst.gz", "e.TEXT", "f.txt.GZ"]
    for name in names:
        write(tmp_path / name.replace("GZ", "gz"), f"Text of {name}.")
    os.rename(tmp_path / "f.txt.gz", tmp_path / "f.txt.GZ")
    assert [text for _, text in passages(str(tmp_path), markup="keep")] == [f"Text of {name}." for name in names]


ARRAYS = ['[{"text": "A."}]', '\ufeff\n [\n"A"]', '{\n "text": "A."\n}\n', '"A."\n', "[]", "7\n"]


@pytest.mark.parametrize("content", ARRAYS)
def test_json_of_other_forms_is_refused_or_left_out(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "b.JSON", content)
    for each in (path, Path(path).as_uri()):
        with pytest.raises(InputFormatError, match=r"is JSON, but not one object a line.*read_as text"):
            resolve_inputs([each])
    for each in (f"{tmp_path}/*", str(tmp_path)):
        with pytest.raises(InputMissingError, match=r"finds no file to read: left out 1 .*not one object a line"):
            resolve_inputs([each])
    write(tmp_path / "z.txt", "Text.")
    assert names_in(tmp_path, str(tmp_path)) == ["z.txt"]
    assert f"left out 1 of the folder '{tmp_path}': {path!r} is JSON, but not one object a line" in caplog.text


@pytest.mark.parametrize("name", ["a.json", "A.JSON", "a.json.gz"])
def test_json_lines_named_json(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, '\ufeff\n{"text": "One."}\r\n{"text": "Two."}')
    assert passages(path) == passages(f"{tmp_path}/*") == [(0, "One."), (1, "Two.")]


def test_a_file_named_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    assert passages(write(tmp_path / "a[1].txt", "Yes.")) == [(0, "Yes.")]


def test_a_single_string_or_path_is_one_input(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "Yes.")
    assert resolve_inputs(str(path)) == resolve_inputs([path]) == [path]


def test_empty_files_of_a_folder_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", " \n")
    write(tmp_path / "b.txt", "Text.")
    assert passages(str(tmp_path)) == [(1, "Text.")]


@pytest.mark.parametrize("missing", ["no.txt", "no/*.txt", "", "folder"])
def test_missing_input_fails_before_anything_is_read(tmp_path: Path, missing: str) -> None:
    good = write(tmp_path / "a.txt", "Text.")
    write(tmp_path / "folder" / "picture.png", "Not read.")
    bad = str(tmp_path / missing) if missing else ""
    with pytest.raises(InputMissingError, match=r"folder|does not exist|matches no file") as caught:
        read_parts([good, good, bad])
    assert repr(bad) in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), FileNotFoundError)


def test_no_input_at_all() -> None:
    with pytest.raises(InputMissingError, match="no input was given"):
        read_parts([])


def test_unreadable_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.txt", "Text.")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        for given_input in (path, str(tmp_path)):
            with pytest.raises(InputMissingError, match=r"a.txt' cannot be read \(permission denied\)"):
                resolve_inputs([given_input])

    def scan(folder: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(InputMissingError, match="Permission denied"):
        resolve_inputs([str(tmp_path)])


def test_file_that_is_removed_before_it_is_read(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, "Text.") for name in ("a.txt", "b.txt")]
    parts = read_parts(paths)
    next(parts)
    os.remove(paths[1])
    with pytest.raises(InputMissingError, match=r"b\.txt' cannot be read"):
        next(parts)


# Unreadable inputs


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.conllu", "a.jsonl"])
@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf\n", b" " * 200_000])
def test_named_file_without_text(tmp_path: Path, name: str, content: bytes) -> None:
    good = write(tmp_path / "good.txt", "Text.")
    with pytest.raises(EmptyInputError, match=r"a\.\w+"):
        read_parts([good, write(tmp_path / name, content)])


def test_whole_input_without_text(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n")
    write(tmp_path / "b.conllu", "# only = a comment\n\n")
    write(tmp_path / "c.jsonl", '{"text": " "}\n')
    with pytest.raises(EmptyInputError, match="no text"):
        list(read_parts([str(tmp_path)]))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.conllu", "a.jsonl"])
def test_not_utf8(tmp_path: Path, name: str) -> None:
    good = {"a.conllu": b"# one\n", "a.jsonl": b'{"text": "a"}\n'}.get(name, b"\xef\xbb\xbfgo\n")
    message = fails_in(tmp_path, InputEncodingError, name, good + b"caf\xe9 au lait\n")
    assert "line 2" in message
    assert f"byte 0xe9 at byte {len(good) + 3}" in message


def test_utf16_is_named(tmp_path: Path) -> None:
    assert "iconv -f UTF-16" in fails_in(tmp_path, InputEncodingError, "a.txt", "Text.".encode("utf-16"))


def test_nul_byte(tmp_path: Path) -> None:
    message = fails_in(tmp_path, InputEncodingError, "a.txt", b"one\ntw\0o\n")
    assert "line 2" in message
    assert "NUL byte, at byte 6" in message


@pytest.mark.parametrize("name", ["a.txt", "a.conllu", "a.jsonl"])
def test_line_too_long(tmp_path: Path, name: str) -> None:
    assert "line 1 " in fails_in(tmp_path, InputFormatError, name, "é" * 101 + "\n", line_characters=100)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
@pytest.mark.parametrize("letter", ["a", "é", "中", "😀"])
def test_longest_line_allowed(tmp_path: Path, letter: str, ending: str) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbf" + (letter * 100 + ending).encode())
    assert passages(path, line_characters=100) == [(0, letter * 100)]
    path = write(tmp_path / "b.txt", "ok\n" + letter * 101 + ending)
    with pytest.raises(InputFormatError, match=r"line 2 .* too long"):
        passages(path, line_characters=100)


def test_a_long_line_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(32):
            stream.write(b"a" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InputFormatError, match=r"line 1 .* is too long"):
            list(read_parts([str(path)], ReadOptions(line_characters=100_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.slow
def test_many_lines_are_not_kept_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", b"Some words that make up a line of text.\n" * 250_000)
    tracemalloc.start()
    try:
        size = sum(part.characters for part in read_parts([path], ReadOptions(part_characters=50_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 9_500_000
    assert peak < 4 << 20


def test_name_of_gzip_without_gzip_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"Plain text.")
    with pytest.raises(InputFormatError, match=r"a\.txt\.gz'.*compressed data is damaged"):
        read_parts([str(path)])


@pytest.mark.parametrize("damage", ["cut", "checksum", "body"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.txt.gz"
    text = "\n".join(f"Line {number * 7919 % 10007}." for number in range(30_000))
    data = bytearray(gzip.compress(text.encode()))
    if damage == "cut":
        del data[len(data) * 9 // 10 :]
    elif damage == "checksum":
        data[-6] ^= 0xFF
    else:
        data[len(data) * 9 // 10 : len(data) * 9 // 10 + 40] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(InputFormatError, match=r"line \d+ of .*compressed data is damaged"):
        list(read_parts([str(path)]))


@pytest.mark.parametrize(
    "options", [{"part_characters": 0}, {"line_characters": -1}, {"text_field": ""}, {"split": ""}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        ReadOptions(**options)


# Real text


def test_books_are_read_completely(shared_folder: Path) -> None:
    path = shared_folder / "data" / "books" / "war-and-peace.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    parts: list[Part] = list(read_parts([str(path)]))
    assert len(parts) > 10
    assert all(part.characters <= 262_144 for part in parts)
    assert [w for part in parts for p in part.passages for w in p.split()] == text.split()
