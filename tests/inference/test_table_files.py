"""Tables of profile contexts in files: equal to the built ones, built again where files are damaged, and bounded."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.plain_scores import distribution_of
from support.small_limits import store_all_tables

from giaann_dask.models.contexts import table_files
from giaann_dask.models.contexts.kinds import count_kinds
from giaann_dask.models.contexts.scores import BEST, LogLinearModel
from giaann_dask.models.contexts.table_files import open_tables
from giaann_dask.models.contexts.tables import JoinedNames, PackedTables, build_tables
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.text.names import Names

TEXT = [
    [["the", "miller", "carries", "the", "flour", "."], ["the", "baker", "bakes", "the", "bread", "."]],
    [["the", "miller", "sees", "the", "river", "."], ["Zoë", "bakes", "."]],
]


@pytest.fixture(scope="module")
def tables() -> PackedTables:
    """Tables of a short text."""
    stream = TokenStream.from_documents(TEXT)
    return build_tables([count_kinds(stream)], stream.words)


def opened(commit: str, build: Callable[[], PackedTables], path: str = "/net", content: str = "c0") -> PackedTables:
    return open_tables(path, commit, lambda: content, build)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: PackedTables) -> Path:
    """Folder of the stored tables of commit ``A``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store_all_tables(monkeypatch)
    assert opened("A", lambda: tables).words.words == tables.words.words
    (folder,) = (tmp_path / "giaann_dask" / "tables").iterdir()
    return folder


def arrays_of(value: object) -> list[np.ndarray]:
    """Return all arrays of tables, in order."""
    if isinstance(value, np.ndarray):
        return [value]
    value = getattr(value, "packed", value)
    parts = value if isinstance(value, tuple) else [getattr(value, each.name) for each in fields(value)]  # type: ignore[arg-type]
    return [array for part in parts if not isinstance(part, str | float | Names) for array in arrays_of(part)]


def test_mapped_words_are_decoded_when_they_are_asked_for(stored: Path, tables: PackedTables) -> None:
    words = opened("A", lambda: pytest.fail("built again")).words
    every = [*tables.words.words, "qqq", "xxx"]
    assert isinstance(words.words, Names)
    assert words.names_with(()) is words.words
    names = words.names_with(every[-2:])
    assert isinstance(names, JoinedNames)
    assert (list(names), names[-3:], names[-len(every)], names[2]) == (every, every[-3:], every[0], every[2])


def test_mapped_tables_are_those_that_were_stored(stored: Path, tables: PackedTables) -> None:
    found = opened("A", lambda: pytest.fail("built again"))
    assert (found.words.words, found.words.unknown) == (tables.words.words, tables.words.unknown)
    pairs = list(zip(arrays_of(found), arrays_of(tables), strict=True))
    assert len(pairs) > 15
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert one.flags.writeable
        assert np.array_equal(one, other)
    stream = TokenStream.from_documents(TEXT[:1])
    models = [LogLinearModel(each, BEST) for each in (found, tables)]
    first, second = (distribution_of(model, stream, 4) for model in models)
    assert first == second


@pytest.mark.parametrize("name", ["bits.npy", "begins.npy", "tables.json", "words_text.npy"])
def test_files_that_are_cut_short_are_replaced(stored: Path, tables: PackedTables, name: str) -> None:
    file = stored / name
    file.write_bytes(file.read_bytes()[:-3])
    built = []
    assert opened("A", lambda: built.append(1) or tables).words.words == tables.words.words
    assert built
    opened("A", lambda: pytest.fail("built again"))


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_a_changed_byte_of_any_file_changes_no_score(stored: Path, tables: PackedTables, part: float) -> None:
    stream = TokenStream.from_documents(TEXT)
    expected = LogLinearModel(tables, BEST).score(stream).log_probability.tolist()
    for file in sorted(stored.iterdir()):
        intact = file.read_bytes()
        at = int(len(intact) * part) if file.suffix == ".json" else 128 + int((len(intact) - 128) * part)
        if at >= len(intact):
            continue
        file.write_bytes(intact[:at] + bytes([intact[at] ^ 0x10]) + intact[at + 1 :])
        found = LogLinearModel(opened("A", lambda: tables), BEST).score(stream).log_probability.tolist()
        assert (file.name, found) == (file.name, expected)
        # The file was replaced, or what was changed is not read for this text.
        if file.read_bytes() != intact:
            assert "words_" in file.name or file.name in ("bits.npy", "begins.npy")
            file.write_bytes(intact)


def test_files_of_another_type_are_replaced(stored: Path, tables: PackedTables) -> None:
    for name, dtype in (("base", np.int64), ("bits", np.int64)):
        np.save(stored / f"{name}.npy", np.load(stored / f"{name}.npy").view(dtype))
        built = []
        opened("A", lambda built=built: built.append(1) or tables)
        assert built


def test_tables_that_are_sent_are_those_that_were_stored(stored: Path, tables: PackedTables) -> None:
    bits = np.load(stored / "bits.npy")
    damaged = bits.copy()
    damaged[0] ^= np.uint64(1)
    for content in (bits, damaged):
        np.save(stored / "bits.npy", content)
        sent = pickle.loads(pickle.dumps(opened("A", lambda: tables)))
        assert np.array_equal(sent.counts.bits, bits)


def test_tables_used_last_are_kept(stored: Path, tables: PackedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(file.stat().st_size for file in stored.glob("*.npy"))
    monkeypatch.setattr(table_files, "_MOST_BYTES", 2 * size + 1)
    opened("B", lambda: tables)
    os.utime(stored.with_name(stored.name.replace("-A-", "-B-")), (1, 1))
    opened("C", lambda: tables)
    assert sorted(path.name.split("-")[1] for path in stored.parent.iterdir()) == ["A", "C"]


def test_small_tables_and_full_disks_store_nothing(
    tmp_path: Path, tables: PackedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opened("A", lambda: tables)
    store_all_tables(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert opened("A", lambda: tables).words.words == tables.words.words
    assert not list((tmp_path / "giaann_dask" / "tables").iterdir())
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert opened("A", lambda: tables).words.words == tables.words.words


def test_other_content_under_the_same_identity_has_tables_of_its_own(stored: Path, tables: PackedTables) -> None:
    """As a forged copy of a network has, or one that takes its place."""
    other = replace(tables, words=replace(tables.words, unknown=0.5))
    for copy in ({"path": "/copy"}, {"content": "c1"}):
        assert opened("A", lambda: other, **copy).words.unknown == 0.5
        assert opened("A", lambda: pytest.fail("built again")).words.unknown == tables.words.unknown


def test_only_the_user_can_read_tables(tmp_path: Path, tables: PackedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store_all_tables(monkeypatch)
    # As earlier versions made them.
    folder = tmp_path / "giaann_dask" / "tables"
    (folder / "A-1").mkdir(parents=True)
    folder.chmod(0o777)
    before = os.umask(0)
    try:
        opened("A", lambda: tables)
    finally:
        os.umask(before)
    made = [tmp_path / "giaann_dask", *(tmp_path / "giaann_dask").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
    assert not (folder / "A-1").exists()
    # Whose folder may be planted.
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert opened("A", lambda: replace(tables, words=replace(tables.words, unknown=0.5))).words.unknown == 0.5


def test_tables_of_removed_commits_are_removed(stored: Path, tables: PackedTables) -> None:
    for commit, path in (("B", "/net"), ("C", "/copy"), ("D", "/copy")):
        opened(commit, lambda: tables, path=path)
    for name in ("C-1", "E-1", "incomplete-abc"):
        (stored.parent / name).mkdir()
    assert table_files.remove_tables("/net", {"B"}, {"A", "C"}) == 3
    assert sorted(path.name.split("-")[1] for path in stored.parent.iterdir()) == ["B", "D"]
    assert table_files.has_tables("/net", "B")
    assert not table_files.has_tables("/net", "A")
