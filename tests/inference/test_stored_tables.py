"""Tables of single contexts, read when they are asked for: equal to those of all counts, with few reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.small_limits import store_all_tables
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import SEGMENT_SHIFT, Integers, unpack_target, word_keys
from giaann_dask.models.contexts import predictor, stored_tables, table_files
from giaann_dask.models.contexts.context_rows import RowCollector, count_longer
from giaann_dask.models.contexts.kernel import Evidence
from giaann_dask.models.contexts.kinds import CHAIN, SMALL_COUNTS, count_kinds
from giaann_dask.models.contexts.predictor import ContextsPredictor, ContextsText
from giaann_dask.models.contexts.stored_tables import RegionRepeats, StoredTables, join_repeats, region_repeats
from giaann_dask.models.contexts.table_files import CommitTables, build_tables, place_of, read_tables
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.models.results import GeneratedToken
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.predictor import opened_from_rows, sentences_of
from giaann_dask.models.words.stream import NONE, TokenStream
from giaann_dask.predict.generation import generate
from giaann_dask.rows import stored
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import PackedRun, pack, unpack
from giaann_dask.runs.placement import Placement, split_run
from giaann_dask.runs.run import Run, divide_rows, row_blocks, rows_between
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.run_io import StoredEntries
from giaann_dask.training.training_options import TrainingOptions

BEST = gd.Specification(profile="contexts", regions=3)
PROMPT = "The old miller carried the flour to the baker. The zyx"
KINDS = range(1, 20)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    """A network of three commits, so that the last one writes sums of stored runs."""
    folder = tmp_path_factory.mktemp("stored")
    text = write_village(folder / "text.txt", 500)
    with gd.connect(workers=0) as client:
        for some in (150, 300):
            options = TrainingOptions(max_sequences=some)
            gd.train(text, folder / "net", client=client, specification=BEST, options=options)
        return gd.train(text, folder / "net", client=client)


def require_equal(reader: CommitReader, text: str) -> None:
    """Compare the tables of the contexts of a text with those of all counts, bit by bit."""
    stream = TokenStream.from_documents([sentences_of(text)])
    built, read = read_tables(*place_of(reader)), StoredTables(reader, KINDS)
    whole, rows = built.words, read.words
    for name in ("words", "unknown"):
        assert getattr(whole, name) == getattr(rows, name)
    for name in ("word_keys", "word_order", "base", "share"):
        assert np.array_equal(getattr(whole, name), getattr(rows, name)), name
    assert [each.tobytes() for each in whole.spelling.counts] == [each.tobytes() for each in rows.spelling.counts]
    (evidence, places), (other, others) = (tables.of_tokens(stream, 0, len(stream)) for tables in (built, read))
    pairs = np.stack([places.ravel(), others.ravel()], axis=1)
    assert ((pairs[:, 0] == NONE) == (pairs[:, 1] == NONE)).all()
    found = np.unique(pairs[pairs[:, 0] != NONE], axis=0).tolist()
    assert len(found) > 20
    for one, two in found:
        assert row_of(evidence, one) == row_of(other, two)


def row_of(tables: Evidence, row: int) -> tuple[object, ...]:
    entries = slice(int(tables.pointer[row]), int(tables.pointer[row + 1]))
    freed = tables.freed[row] if row < len(tables.freed) else None
    columns = (tables.word, tables.evidence, tables.discounted)
    return (freed, *(column[entries].tolist() for column in columns))


def from_tables(reader: CommitReader, tokens: int) -> tuple[GeneratedToken, ...]:
    """Continue the prompt with tables of all counts."""
    tables = CommitTables(*place_of(reader), read_tables(*place_of(reader)))
    text = ContextsText(ContextsPredictor(reader, tables=tables), PROMPT, gd.GenerationOptions(max_tokens=tokens))
    return tuple(token for _ in range(tokens) if (token := text.step()) is not None)


def test_rows_are_those_of_all_tables(network: gd.Network) -> None:
    reader = reader_of(network)
    text = (network.path.parent / "text.txt").read_text(encoding="utf-8")
    require_equal(reader, text[:1500] + " Unheard words, of course.")


def test_tables_are_not_taken_from_other_content_of_that_identity(
    network: gd.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a forged network with the identity of a commit, which comes in the place of another one, has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store_all_tables(monkeypatch)
    reader = reader_of(network)
    honest = read_tables(*place_of(reader))
    (folder,) = (tmp_path / "giaann_dask" / "tables").iterdir()
    other = NetworkStore(network.path).open(network.commits()[1][0])
    assert len({each.fingerprint() for each in (reader, other, reader_of(network))}) == 2
    # Another commit under its name.
    places = list(table_files.region_places(other))
    monkeypatch.setattr(table_files, "region_places", lambda _: places)
    monkeypatch.setattr(table_files, "open_commit", lambda *_: other)
    forged = read_tables(*place_of(reader))
    monkeypatch.undo()
    assert not np.array_equal(forged.counts.packed.bits, honest.counts.packed.bits)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert len([*folder.parent.iterdir()]) == 2
    monkeypatch.setattr(table_files, "build_tables", lambda *_: pytest.fail("built again"))
    assert np.array_equal(read_tables(*place_of(reader)).counts.packed.bits, honest.counts.packed.bits)


def cut(run: Run, size: int) -> list[Run]:
    """Some rows at a time."""
    return [rows_between(run, *rows) for rows in row_blocks(run.pointer, size)]


def require_same_in_parts(
    placement: Placement,
    regions: dict[int, Run],
    whole: list[tuple[PackedRun, Integers]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare with tables that are made of a few rows at a time, of which one row is divided among two regions."""
    every = merge_runs([*regions.values()])
    segment, neuron, _ = unpack_target(every.target)
    # The largest row of a context that extends another one.
    lengths = np.diff(every.pointer) * np.logical_or.reduceat(segment == EXTENDS, every.pointer[:-1])
    at = int(np.argmax(lengths))
    largest, targets = int(every.source[at]), neuron[every.pointer[at] : every.pointer[at + 1]]
    own, middle = int(placement.region_of(largest)), int(np.median(targets))
    halves = [split_run(regions[own], largest, upper, middle) for upper in (False, True)]
    split = placement.split(own, largest, middle)
    low, high = split.divided()[largest]
    group = {**{number: [run] for number, run in regions.items() if number != own}, low: halves}
    held = []
    merge = stored_tables.merge_runs

    def merge_few(runs: list[Run]) -> Run:
        held.append(sum(run.target.nbytes for run in runs))
        return merge(runs)

    monkeypatch.setattr(stored_tables, "merge_runs", merge_few)
    monkeypatch.setattr(stored_tables, "TOGETHER", 20)
    parts = {number: region_repeats([partial(cut, run, 20) for run in runs], split) for number, runs in group.items()}
    joined = [join_repeats(number, [*parts.values()], part) for number, part in parts.items()]
    assert high not in parts
    found = [each for each in joined if each is not None]
    assert len(found) == 4
    assert sum(small for _, small in found).tolist() == sum(small for _, small in whole).tolist()
    repeats, expected = (merge([unpack(packed) for packed, _ in tables]) for tables in (found, whole))
    for name in ("source", "pointer", "target", "strength"):
        assert getattr(repeats, name).tolist() == getattr(expected, name).tolist(), name
    # Counts and repeats of a block, and what waits to be packed: no more than a row of each beyond the limit.
    assert 0 < max(held) <= 16 * (20 + int(np.diff(every.pointer).max())) < every.target.nbytes / 10


def test_sums_of_regions_are_those_of_all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    sentences = [[f"w{n}" for n in rng.zipf(1.6, rng.integers(1, 9)) if n < 30] for _ in range(300)]
    stream = TokenStream.from_documents([[sentence for sentence in sentences if sentence]])
    run, placement = count_kinds(stream), Placement(4)
    regions = placement.regions_of(run.source)
    divided = divide_rows(run, regions)
    parts = [region_repeats([partial(cut, divided[region], 1 << 20)], placement) for region in range(4)]
    joined = [each for region in range(4) if (each := join_repeats(region, parts, parts[region])) is not None]
    assert len(joined) == 4
    require_same_in_parts(placement, divided, joined, monkeypatch)
    collector = RowCollector(np.unique(word_keys(stream.words)))
    collector.add(run)
    places = np.arange(len(collector.word_keys), dtype=np.int32)
    rows = [collector.take(kind, places) for kind in range(CHAIN + 1)]
    extended = collector.take_extended()
    for kind in range(1, CHAIN + 1):
        own = rows[kind]
        longer = count_longer(own, rows[kind + 1], extended) if kind < CHAIN else np.zeros(len(own.word), np.int64)
        link = np.where(longer > 0, longer, own.counts)
        assert sum(small for _, small in joined)[kind - 1].tolist() == [int((link == n).sum()) for n in (1, 2, 3, 4)]


def test_a_row_that_every_region_repeats_is_added_up_some_parts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    words, regions = 10, 40
    target, none = (np.int64(1) << SEGMENT_SHIFT) + np.arange(words), np.zeros((CHAIN, SMALL_COUNTS), np.int64)

    def row(count: int) -> PackedRun:
        return pack(Run(np.array([7]), np.array([0, words]), target, np.full(words, count, np.int32)))

    parts = [RegionRepeats({0: (row(1),)}, (), none) for _ in range(regions)]
    held = []

    def merge_few(runs: list[Run]) -> Run:
        held.append(sum(run.target.nbytes for run in runs))
        return merge_runs(runs)

    monkeypatch.setattr(stored_tables, "merge_runs", merge_few)
    monkeypatch.setattr(stored_tables, "TOGETHER", 20)
    joined = join_repeats(0, parts, RegionRepeats({}, (row(100),), none))
    assert joined is not None
    assert unpack(joined[0]).strength.tolist() == [regions] * words
    # The sum, two rows that reach the limit, and the counts of the row: not those of all regions.
    assert 0 < max(held) <= 8 * 3 * words < 8 * regions * words


def test_counts_that_contradict_each_other_have_no_sums() -> None:
    """Forged ones, or those of two contexts with one key: a network with such sums could not be opened any more."""
    stream = TokenStream.from_documents([[["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"]]])
    run, placement = count_kinds(stream), Placement(1)
    kind = run.target >> SEGMENT_SHIFT
    for changed in ((kind == 3) & (run.strength > 1), (kind == 1) & (run.strength > 1)):
        strength = run.strength.copy()
        # A word more often after a longer context than after the shorter one, or less often after that.
        strength[changed] += 5 if kind[changed][0] == 3 else -1
        forged = replace(run, strength=strength)
        part = region_repeats([partial(cut, forged, 1 << 20)], placement)
        assert join_repeats(0, [part], part) is None
        collector = RowCollector(np.unique(word_keys(stream.words)))
        collector.add(forged)
    with pytest.raises(StoreDamagedError, match="does not name"):
        RowCollector(np.unique(word_keys(stream.words[:-1]))).add(run)


def test_what_was_added_and_forgotten_is_as_if_trained_so(network: gd.Network, tmp_path: Path) -> None:
    one, other = write_village(tmp_path / "one.txt", 90), write_village(tmp_path / "other.txt", 60, seed=3)
    few = tmp_path / "few.txt"
    few.write_text("The queer baker sang to the miller. The queer baker sang of bread.\n", encoding="utf-8")
    with gd.connect(workers=0) as client:
        both = gd.train([one, other], tmp_path / "both", client=client, specification=BEST)
        require_equal(reader_of(both), other.read_text(encoding="utf-8")[:1000])
        # What costs as much as the network is not done for a few sentences.
        assert reader_of(gd.train(few, both.path, client=client)).repeats() is None
        gd.forget(both.path, [other], client=client)
    reader = reader_of(both)
    assert reader.repeated_connections == reader.manifest().connections
    require_equal(reader, one.read_text(encoding="utf-8")[:1000])


def test_a_prompt_reads_what_it_needs(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(network)
    expected = from_tables(reader, 5)
    assert reader.repeats() is not None
    monkeypatch.setattr(table_files, "build_tables", lambda *_: pytest.fail("all tables are built"))
    monkeypatch.setattr(stored, "open_region", lambda *_: pytest.fail("a region is decoded"))
    asked: list[str] = []
    read = StoredEntries.read

    def counted(self: StoredEntries, names: list[str]) -> dict[str, bytes]:
        asked.extend(self._prefix + name for name in names)
        return read(self, names)

    monkeypatch.setattr(StoredEntries, "read", counted)
    monkeypatch.setattr(PackedRun, "read_from", lambda read: pytest.fail("a whole run is read"))
    found = generate(None, reader, PROMPT, gd.GenerationOptions(max_tokens=5))
    assert found.tokens == expected
    # Nothing is read again for the next token.
    chunks = [name for name in asked if "/c/" in name]
    assert chunks
    assert len(chunks) == len(set(chunks))


def test_a_process_opens_a_commit_once_for_prompts(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, options = reader_of(network), gd.GenerationOptions(max_tokens=4)
    monkeypatch.setattr(predictor, "has_tables", lambda *_: False)
    expected = generate(None, reader, PROMPT, options)
    tables = opened_from_rows(*place_of(reader), None)._stored
    assert tables is not None
    monkeypatch.setattr(predictor, "StoredTables", lambda *_: pytest.fail("tables are opened again"))
    for limit in (predictor.KEPT_BYTES, 0):
        assert tables.kept_bytes > 0
        monkeypatch.setattr(predictor, "KEPT_BYTES", limit)
        assert generate(None, reader, PROMPT, options).tokens == expected.tokens
    assert not tables.kept_bytes


def test_commits_without_sums_are_read_as_a_whole(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = from_tables(reader_of(network), 5)
    monkeypatch.setattr(CommitReader, "repeats", lambda self: None)
    opened_from_rows.cache_clear()
    built = []
    monkeypatch.setattr(table_files, "build_tables", lambda *given: built.append(1) or build_tables(*given))
    found = generate(None, reader_of(network), PROMPT, gd.GenerationOptions(max_tokens=5))
    assert found.tokens == expected
    assert built


def test_tables_are_built_while_rows_answer(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_CONNECTIONS_PER_TOKEN", reader_of(network).manifest().connections // 3 + 1)
    opened = ContextsPredictor(reader_of(network))
    options = gd.GenerationOptions(max_tokens=9)
    batch = opened.open_batch(options, BatchOptions(slots=1))
    batch.prepare(PROMPT, options).enter()
    words = []
    while len(batch):
        words += [event.token for event in batch.step() if event.token]
        if len(words) == 2:
            assert opened.building is None, "the first tokens need no tables"
            scored = opened.score(PROMPT)
            assert opened.building is not None
            opened.building.join(60)
            assert opened.has_tables, "now there are tables, also for the text that is continued"
            monkeypatch.setattr(StoredTables, "of_tokens", lambda *_: pytest.fail("a row is read"))
    assert tuple(words) == from_tables(reader_of(network), 9)
    assert scored == opened.score(PROMPT)


def test_tables_are_built_at_once_for_many_prompts(network: gd.Network) -> None:
    opened = ContextsPredictor(reader_of(network))
    assert not opened.has_tables
    opened.open_batch(gd.GenerationOptions())
    assert opened.building is not None
    opened.building.join(60)
    assert opened.has_tables
