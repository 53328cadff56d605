"""Tables made of those of another commit and the counts that differ are those that are built from all counts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.small_limits import store_all_tables
from support.village import write_village

import giaann_dask as gd
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import as_sources, commit_sources
from giaann_dask.keys import unpack_target
from giaann_dask.models.contexts import table_files
from giaann_dask.models.contexts.changed_tables import ChangedCounts, changed_tables
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, count_kinds
from giaann_dask.models.contexts.predictor import ContextsPredictor
from giaann_dask.models.contexts.tables import PackedTables, build_tables
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.run import Run, select_connections
from giaann_dask.store.commits import CommitReader
from giaann_dask.training.small_changes import SmallChanges

Document = list[list[str]]
WORDS = [*"abcdefgh", "house", "houses", "river", "rivers", "ein", "zwei"]


def document_of(chance: random.Random, own: str = "") -> Document:
    words = [*WORDS, own] if own else WORDS
    return [chance.choices(words, k=chance.randint(1, 9)) for _ in range(chance.randint(1, 6))]


def counted(documents: list[Document]) -> tuple[list[Run], list[str]]:
    streams = [TokenStream.from_documents([each]) for each in documents]
    return [count_kinds(stream) for stream in streams], sorted({word for stream in streams for word in stream.words})


def built(documents: list[Document]) -> PackedTables:
    # Of distinct connections, as the runs of a region.
    stream = TokenStream.from_documents(documents)
    return build_tables([count_kinds(stream)], stream.words)


def require_equal(found: PackedTables | None, expected: PackedTables, documents: list[Document]) -> None:
    assert found is not None
    for name in ("word_keys", "word_order", "base", "share", "counts", "preceding", "spelled"):
        assert getattr(found.words, name).tobytes() == getattr(expected.words, name).tobytes(), name
    assert (*found.words.words,) == (*expected.words.words,)
    assert found.words.unknown == expected.words.unknown
    assert found.discounts.tobytes() == expected.discounts.tobytes()
    stream = TokenStream.from_documents(documents)
    for kind in range(1, len(CONTEXTS)):
        keys = np.unique(stream.sources(kind, CONTEXTS[kind]))
        for wanted in (keys, keys[::3], keys[:1]):
            rows = [each.counts.rows(kind, wanted) for each in (found, expected)]
            for one, other in zip(*((*each[0], *each[1:]) for each in rows), strict=True):
                assert one.tolist() == other.tolist(), kind


@pytest.mark.parametrize("seed", range(12))
def test_added_documents(seed: int) -> None:
    chance = random.Random(seed)
    before = [document_of(chance, "first") for _ in range(chance.randint(3, 12))]
    new = [document_of(chance, own) for own in ("new", "other", "")]
    after = before + new
    runs, _ = counted(new)
    # A commit may have the sum of some runs in their place.
    summed, replaced = counted([*before[:2], *new])[0], counted(before[:2])[0]
    words = counted(after)[1]
    for added, removed in ((runs, []), (summed, replaced)):
        found = changed_tables(built(before), added, removed, words)
        require_equal(found, built(after), after)
    # Nor has anything changed by no document.
    require_equal(changed_tables(built(after), [], [], words), built(after), after)


def test_tables_with_removed_text_are_not_used() -> None:
    chance = random.Random(3)
    before, other = ([document_of(chance, own) for _ in range(4)] for own in ("one", "two"))
    runs, minus, words = counted(other)[0], counted(before[:1])[0], counted([*before, *other])[1]
    assert changed_tables(built([*before, *other]), [], runs, words) is None
    assert changed_tables(built(before), runs, minus, words) is None
    # Words as frequent as before in other contexts.
    turned = [[sentence[::-1] for sentence in document] for document in before]
    assert changed_tables(built(before), counted(turned)[0], counted(before)[0], words) is None
    # Counts of longer contexts without those of the shorter ones that they extend.
    run = minus[0]
    incomplete = select_connections(run, unpack_target(run.target)[0] != CHAIN - 1)
    assert changed_tables(built(before), [run], [], words) is not None
    assert changed_tables(built(before), [incomplete], [], words) is None


def texts_of(folder: Path, count: int) -> list[str]:
    return [write_village(folder / f"{number}.txt", 3, number + 40).read_text() for number in range(count)]


def add(changes: SmallChanges, text: str) -> CommitReader:
    inputs = as_sources([text])
    with changes.store.lock():
        reader = changes.opened().reader
        added = changes.add(inputs, commit_sources(reader, TextOptions().fitting(inputs)))
    assert added is not None
    return added


def answers(tables: PackedTables | None, reader: CommitReader) -> list[object]:
    given = None if tables is None else table_files.CommitTables(*table_files.place_of(reader), tables)
    predictor = ContextsPredictor(reader, tables=given)
    if tables is None:
        assert isinstance(predictor.model.tables, PackedTables)
        assert isinstance(predictor.model.tables.counts, ChangedCounts)
    scores = predictor.score("The old miller carried a zyzzyva to the village. The baker saw the miller.", candidates=5)
    session = predictor.start("The old miller", GenerationOptions(max_tokens=12, reasons=3))
    return [scores, *iter(session.step, None)]


def test_a_small_document_is_predicted_from_without_building_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_all_tables(monkeypatch)
    network = tmp_path / "net"
    with gd.connect(workers=0) as client:
        text = write_village(tmp_path / "text.txt", 400, 9)
        gd.train(text, network, client=client, profile="contexts", regions=3)
        changes = SmallChanges(network)
        table_files.commit_tables(changes.opened().reader)
        for number, text in enumerate(texts_of(tmp_path, 4)):
            reader = add(changes, text)
            with monkeypatch.context() as patched:
                patched.setattr(table_files, "build_tables", lambda *_: pytest.fail("all tables are built"))
                found = answers(None, reader)
            assert found == answers(table_files.build_commit_tables(reader), reader), number
        # Tables that hold what was forgotten are not used.
        gd.forget(network, [text], client=client)
        reader = changes.store.open(changes.store.head())
        tables = table_files.commit_tables(reader)
        assert not isinstance(tables.counts, ChangedCounts)
        assert answers(tables, reader) == answers(table_files.build_commit_tables(reader), reader)
