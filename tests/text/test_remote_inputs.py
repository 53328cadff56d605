"""Inputs at URLs, in archives, compressed in other ways than gzip, and named by a list."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import EmptyInputError, InputFormatError, InputMissingError, MissingDependencyError
from giaann_dask.text.inputs import names_input, resolve_inputs
from giaann_dask.text.reading import read_parts

TEXT = "The miller carried the flour to the baker.\n\nThe baker slept in the house by the river.\n"


def zstd(content: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor()
    half = len(content) // 2
    # Two frames, as files that were appended to have.
    return bytes(compressor.compress(content[:half]) + compressor.compress(content[half:]))


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def passages(*inputs: str) -> list[str]:
    return [passage for part in read_parts(list(inputs)) for passage in part.passages]


# Status with which the site refuses, the last one.
refused: list[int] = []


class _Site(SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        if refused:
            self.send_error(refused[-1])
            return None
        return super().send_head()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which a web server has it."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = partial(_Site, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        refused.clear()
        server.shutdown()


@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_files(tmp_path: Path, suffix: str) -> None:
    packed = PACKED[suffix](TEXT.encode())
    (tmp_path / f"a.txt{suffix}").write_bytes(packed)
    (tmp_path / f"skipped.pdf{suffix}").write_bytes(packed)
    plain = passages(str(tmp_path / f"a.txt{suffix}"))
    assert plain == passages(str(tmp_path)) == TEXT.strip().split("\n\n")
    (tmp_path / f"b.txt{suffix}").write_bytes(packed[: len(packed) * 2 // 3])
    (tmp_path / f"c.txt{suffix}").write_bytes(b"This is no compressed data, whatever its name says. " * 9)
    for name in ("b", "c"):
        with pytest.raises(InputFormatError, match="damaged or cut short"):
            print(passages(str(tmp_path / f"{name}.txt{suffix}")))


def test_files_of_a_web_server(site: tuple[Path, str]) -> None:
    folder, address = site
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
    assert passages(f"{address}/a.txt") == passages(f"{address}/b.txt.xz") == TEXT.strip().split("\n\n")
    (found,) = resolve_inputs([f"{address}/a.txt?from=here"])
    assert str(found) == f"{address}/a.txt?from=here"
    with pytest.raises(InputMissingError, match="there is no file at 'http"):
        resolve_inputs([f"{address}/none.txt"])
    with pytest.raises(InputMissingError, match=r"cannot be read \(Client\w+Error: .*check the address, the network"):
        resolve_inputs(["http://127.0.0.1:9/none.txt"])
    for status in (401, 403, 500):
        refused.append(status)
        with pytest.raises(InputMissingError, match=rf"cannot be read \(ClientResponseError: {status}"):
            resolve_inputs([f"{address}/a.txt"])


def test_the_same_text_is_known_wherever_it_is(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    (folder / "a.txt").write_text(TEXT * 3)
    with gd.connect(workers=0) as client:
        first = gd.train(folder / "a.txt", tmp_path / "net", client=client)
        again = gd.train(f"{address}/a.txt", tmp_path / "net", client=client)
    assert again.commit == first.commit, "nothing new"


def test_files_of_an_archive_and_of_memory(tmp_path: Path) -> None:
    import fsspec

    archive = tmp_path / "books.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("a.txt", TEXT)
        files.writestr("more/b.txt", "It rained all day.")
        files.writestr("more/c.pdf", "No text.")
    expected = TEXT.strip().split("\n\n")
    assert passages(f"zip://a.txt::{archive}") == expected
    assert passages(f"zip://*.txt::{archive}") == expected
    assert passages(f"zip://**/*.txt::{archive}") == [*expected, "It rained all day."]
    assert passages(f"zip://more::{archive}") == ["It rained all day."]
    fsspec.filesystem("memory").pipe("/books/d.txt", b"The storm passed.")
    assert passages("memory://books/*.txt") == ["The storm passed."]
    assert [str(each) for each in resolve_inputs([f"zip://more::{archive}"])] == [f"zip://more/b.txt::{archive}"]


def test_files_of_the_hub_are_no_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    class Hub(MemoryFileSystem):  # type: ignore[misc]
        protocol = "hf"
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("hf://"))

    # As that of `huggingface_hub`, without the network.
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hf", Hub)
    for name, text in (("a.txt", TEXT), ("b.txt", "It rained all day."), ("c.parquet", "No text.")):
        Hub().pipe(f"/datasets/owner/name/{name}", text.encode())
    expected = [*TEXT.strip().split("\n\n"), "It rained all day."]
    assert passages("hf://datasets/owner/name/b.txt") == ["It rained all day."]
    assert passages("hf://datasets/owner/name") == passages("hf://datasets/owner/name/*.txt") == expected
    with pytest.raises(InputMissingError, match="there is no file at 'hf://datasets/owner/none"):
        resolve_inputs(["hf://datasets/owner/none.txt"])


def test_a_list_of_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"The {name} slept.")
    names = tmp_path / "names"
    names.write_text(f"# the first two\n{tmp_path}/b.txt\n\n  {tmp_path}/a.txt\n", encoding="utf-8")
    assert passages(f"@{names}") == ["The b slept.", "The a slept."]
    names.write_text("# none\n")
    with pytest.raises(EmptyInputError, match="names no input"):
        passages(f"@{names}")
    assert run(["train", f"@{names}", "--network", str(tmp_path / "net"), "--workers", "0"]) == 2
    assert "names no input" in capsys.readouterr().err
    names.write_text(f"@{tmp_path}/others\n")
    (tmp_path / "others").write_text(f"{tmp_path}/a.txt\n@{names}\n")
    with pytest.raises(InputFormatError, match="names' names itself"):
        passages(f"@{names}")


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **options: Any) -> None:
        raise ImportError("Please install s3fs")

    monkeypatch.setattr("obstore.fsspec.FsspecStore", fail)
    with pytest.raises(MissingDependencyError, match="Please install s3fs"):
        resolve_inputs(["s3://bucket/a.txt"])
    monkeypatch.undo()
    with pytest.raises(InputMissingError, match=r"nonsense://a\.txt"):
        resolve_inputs(["nonsense://a.txt"])


def test_what_is_a_url() -> None:
    assert names_input("https://example.org/a")
    assert not names_input("He said https://example.org is a place.")
