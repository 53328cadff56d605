"""The compressed form of a run: exact, deterministic, readable by Zarr, and never silently damaged."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

from giaann_dask.errors import StoreDamagedError, StoreFormatError
from giaann_dask.keys import NEURON_MASK, pack_neuron, pack_target, unpack_target
from giaann_dask.runs import target_names
from giaann_dask.runs.packed_arrays import FrameSummary, decode_array, encode_array, read_layout
from giaann_dask.runs.packed_rows import RowReader, read_rows
from giaann_dask.runs.packing import CHUNK, FRAMINGS, PackedRun, pack, pack_blocks, unpack
from giaann_dask.runs.placement import split_packed
from giaann_dask.runs.run import BLOCK, Run, narrow_strength, rows_between
from giaann_dask.spec import BRANCH_BITS

ARRAYS = ("source", "pointer", "target", "strength")

COLUMNS = st.one_of(st.integers(0, 3), st.integers(0, (1 << 26) - 1))
FEATURES = st.one_of(st.integers(0, 3), st.integers(0, (1 << 25) - 1))
SEGMENTS = st.integers(0, 31)
BRANCHES = st.one_of(st.integers(0, 1), st.integers(0, 127))
STRENGTHS = st.one_of(st.integers(1, 300), st.integers(1, 1 << 32), st.integers(1, (1 << 63) - 1))
CONNECTIONS = st.tuples(COLUMNS, FEATURES, SEGMENTS, COLUMNS, FEATURES, BRANCHES)


def as_group(packed: PackedRun) -> zarr.Group:
    """Open a packed run as any reader of Zarr does."""
    store = MemoryStore({key: Buffer.from_bytes(value) for key, value in packed.entries.items()})
    return zarr.open_group(store, mode="r")


def to_run(plain: dict[tuple[int, int], int]) -> Run:
    """Build a run from a dictionary of (source, target) to strength; its arrays are read-only."""
    pairs = sorted(plain)
    source, counts = np.unique(np.array([s for s, _ in pairs], np.int64), return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    target = np.array([t for _, t in pairs], np.int64)
    strength = narrow_strength(np.array([plain[pair] for pair in pairs], np.int64))
    for array in (source, pointer, target, strength):
        array.flags.writeable = False
    return Run(source, pointer, target, strength)


def random_run(seed: int, connections: int, largest: int = 1 << 24) -> Run:
    """A run as training makes them: most targets on two segments, with equal strengths."""
    rng, count = np.random.default_rng(seed), connections // 2
    source = pack_neuron(rng.integers(0, 50, count), rng.integers(0, 20, count))
    neuron = pack_neuron(rng.integers(0, 70, count), rng.integers(0, 90, count))
    strength, branch = rng.integers(1, largest, count), rng.integers(0, 2, count)
    plain: dict[tuple[int, int], int] = {}
    for first, last in ((0, 3), (3, 8)):
        target = pack_target(rng.integers(first, last, count), neuron, branch)
        plain |= zip(zip(source.tolist(), target.tolist(), strict=True), strength.tolist(), strict=True)
    return to_run(plain)


def hashed_run(seed: int, connections: int, words: int = 50, most: int = 1 << 24) -> Run:
    """A run as models of words have them: contexts and words are hashes, and each word follows many contexts."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, NEURON_MASK, connections // 3)[rng.integers(0, connections // 3, connections)]
    word = rng.integers(0, NEURON_MASK, words)[np.minimum(rng.geometric(4 / words, connections), words) - 1]
    target = pack_target(rng.choice([2, 9, 31], connections), word, 0)
    strength = rng.integers(1, most, connections)
    return to_run(dict(zip(zip(source.tolist(), target.tolist(), strict=True), strength.tolist(), strict=True)))


def assert_same(left: Run, right: Run) -> None:
    for name in ARRAYS:
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), name


def tampered(packed: PackedRun, name: str, change: Any) -> PackedRun:
    """Rewrite an array of the group through Zarr, so that its checksums are right."""
    stored = {key: Buffer.from_bytes(value) for key, value in packed.entries.items()}
    store = MemoryStore(stored)
    array = zarr.open_array(store, path=name, mode="r+")
    values = np.asarray(array[:])
    array[:] = change(values)
    entries = {key: value.to_bytes() for key, value in stored.items()}
    assert entries != packed.entries
    # Zarr keeps the lists of checksums and summaries, and knows nothing of them.
    document = json.loads(entries[f"{name}/zarr.json"])
    attributes, size = document["attributes"], array.chunks[0]
    chunks = [change(values)[begin : begin + size] for begin in range(0, len(values), size)]
    # It leaves out chunks of zeros.
    ends = [entries.get(f"{name}/c/{number}", b"")[-4:] for number in range(len(chunks))]
    attributes["crc32c"] = [int.from_bytes(end, "little") for end in ends]
    for each in FrameSummary:
        if each.value in attributes and "differences" not in attributes:
            attributes[each.value] = [each.of(chunk) for chunk in chunks]
    entries[f"{name}/zarr.json"] = json.dumps(document).encode()
    return PackedRun(entries, packed.rows, packed.connections, packed.nbytes)


@given(st.dictionaries(CONNECTIONS, STRENGTHS, max_size=60), st.integers(1, 40))
def test_unpacking_restores_every_bit(connections: dict[tuple[int, int, int, int, int, int], int], chunk: int) -> None:
    plain = {
        (int(pack_neuron(c, f)), int(pack_target(s, pack_neuron(tc, tf), b))): strength
        for (c, f, s, tc, tf, b), strength in connections.items()
    }
    run = to_run(plain)
    packed = pack(run, chunk=chunk)
    assert (packed.rows, packed.connections, len(packed)) == (len(run.source), len(run), len(run))
    assert packed.nbytes == sum(map(len, packed.entries.values()))
    for block in (BLOCK, 10, 3):
        assert_same(unpack(packed, block=block), run)
        assert pack(run, chunk=chunk, block=block).entries == packed.entries
    again = PackedRun.from_entries(packed.entries)
    assert (again.entries, again.rows, again.connections, again.nbytes) == (
        packed.entries,
        packed.rows,
        packed.connections,
        packed.nbytes,
    )


def test_highest_keys_and_strengths() -> None:
    neuron = (1 << 51) - 1
    targets = [int(pack_target(segment, neuron, 127)) for segment in range(32)]
    extremes = [1, (1 << 63) - 1]
    run = to_run({(neuron, target): extremes[at % 2] for at, target in enumerate(targets)})
    assert int(run.target[-1]) == np.iinfo(np.int64).max
    assert_same(unpack(pack(run)), run)


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1_000_000])
def test_chunk_length_changes_nothing_but_the_chunks(chunk: int) -> None:
    run = random_run(1, 3000 if chunk > 1 else 100)
    packed = pack(run, chunk)
    assert_same(unpack(packed), run)
    lengths = {zarr_array.chunks[0] for _, zarr_array in as_group(packed).arrays()}
    assert max(lengths) <= chunk


def test_views_read_only_and_unaligned_arrays() -> None:
    run = random_run(2, 500)
    raw = b"x" + run.target.tobytes()
    shifted = Run(run.source, run.pointer, np.frombuffer(raw, np.int64, offset=1), run.strength)
    assert not shifted.target.flags.aligned
    assert pack(shifted).entries == pack(run).entries
    wide = Run(run.source, run.pointer, run.target, np.repeat(run.strength, 2)[::2])
    assert pack(wide).entries == pack(run).entries


def test_empty_run_and_empty_rows() -> None:
    packed = pack(Run.empty())
    assert_same(unpack(packed), Run.empty())
    assert packed.nbytes < 4096
    hollow = Run(np.array([1, 5]), np.array([0, 0, 1]), np.array([9]), np.array([4], np.int32))
    assert_same(unpack(pack(hollow)), hollow)


def test_zarr_reads_what_the_table_says() -> None:
    run = random_run(3, 2000)
    group = as_group(pack(run, chunk=300))
    values = {name: np.asarray(array[:]) for name, array in group.arrays()}
    assert all(np.issubdtype(array.dtype, np.unsignedinteger) for array in values.values())
    columns = group["source_column"]
    first, size, gaps = columns.attrs["frame_first"], columns.chunks[0], values["source_column"].astype(np.int64)
    restored = [begin + np.cumsum(gaps[at * size : (at + 1) * size]) for at, begin in enumerate(first)]
    values["source_column"] = np.concatenate(restored)
    assert dict(group.attrs)["giaann_run"]["connections"] == len(run)  # type: ignore[index, call-overload]
    assert np.array_equal(pack_neuron(values["source_column"], values["source_feature"]), run.source)
    plain: dict[tuple[int, int], int] = {}
    changes = iter(values["strength_change"].tolist())
    row_of = np.repeat(run.source, values["row_targets"].astype(np.int64))
    for at, source in enumerate(row_of.tolist()):
        neuron = pack_neuron(values["target_column"][at], values["target_feature"][at])
        strength = int(values["strength"][at])
        segments = [s for s in range(32) if int(values["target_segments"][at]) >> s & 1]
        for number, segment in enumerate(segments):
            if number:
                code = next(changes)
                strength += code // 2 if code % 2 == 0 else -(code + 1) // 2
            plain[source, int(pack_target(segment, neuron, int(values["target_branch"][at])))] = strength
    assert next(changes, None) is None
    assert_same(to_run(plain), run)


def test_group_is_read_only() -> None:
    group = as_group(pack(random_run(4, 50)))
    array = group["strength"]
    assert isinstance(array, zarr.Array)
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 1


def test_pickles() -> None:
    packed = pack(random_run(5, 200))
    again = pickle.loads(pickle.dumps(packed))
    assert again.entries == packed.entries
    assert_same(unpack(again), unpack(packed))


def test_any_changed_byte_is_found() -> None:
    packed = pack(random_run(6, 60), chunk=50)
    rng = np.random.default_rng(6)
    for key, value in packed.entries.items():
        for at in range(len(value)):
            changed = bytearray(value)
            changed[at] ^= int(rng.integers(1, 256))
            entries = {**packed.entries, key: bytes(changed)}
            with pytest.raises((StoreDamagedError, StoreFormatError)):
                unpack(PackedRun(entries, packed.rows, packed.connections, packed.nbytes))


def test_a_missing_additional_or_cut_entry_is_found() -> None:
    packed = pack(random_run(7, 120), chunk=50)
    for key, value in packed.entries.items():
        entries = {k: v for k, v in packed.entries.items() if k != key}
        for changed in (entries, {**entries, key: value[:-1]}, {**entries, key: b""}):
            for block in (BLOCK, 3):
                with pytest.raises(StoreDamagedError):
                    unpack(PackedRun(changed, packed.rows, packed.connections, packed.nbytes), block=block)
    with pytest.raises(StoreDamagedError, match="entries"):
        unpack(PackedRun({**packed.entries, "c/0": b"more"}, 0, 0, 0))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("source_column", lambda v: v[::-1]),
        ("source_column", lambda v: np.full_like(v, v[0])),
        ("row_targets", lambda v: v + (np.arange(len(v)) == 0).astype(v.dtype)),
        ("row_targets", lambda v: v - (np.arange(len(v)) == 0).astype(v.dtype)),
        ("target_column", lambda v: v[::-1]),
        ("target_branch", lambda v: np.full_like(v, 200)),
        ("target_segments", lambda v: np.zeros_like(v)),
        ("target_segments", lambda v: np.full_like(v, 255)),
        ("target_segments", lambda v: np.ones_like(v)),
        ("strength", lambda v: np.zeros_like(v)),
        ("strength", lambda v: np.full_like(v, np.iinfo(v.dtype).max)),
        ("strength_change", lambda v: np.full_like(v, np.iinfo(v.dtype).max)),
    ],
)
def test_values_that_contradict_each_other(name: str, change: Any) -> None:
    # Strengths that need 32 bits, so that their largest unsigned value fits no int32.
    run = random_run(8, 400, largest=np.iinfo(np.int32).max)
    run = Run(run.source, run.pointer, run.target, run.strength.copy())
    run.strength[::3] = 1 << 30
    damaged = tampered(pack(run, chunk=100), name, change)
    for block in (BLOCK, 3):
        with pytest.raises(StoreDamagedError):
            unpack(damaged, block=block)


def test_what_zarr_writes_is_read() -> None:
    run = random_run(9, 400)
    packed = pack(run, chunk=100)
    doubled = tampered(packed, "strength", lambda v: np.where(v < 5_000_000, v + 1, v))
    assert len(unpack(doubled)) == len(run)
    assert np.array_equal(unpack(doubled).target, run.target)
    assert not np.array_equal(unpack(doubled).strength, run.strength)


@pytest.mark.parametrize(
    "header",
    [
        {"version": 5, "rows": 1, "connections": 120, "strength_bits": 32},
        {"version": 5, "rows": -1, "connections": 120, "strength_bits": 32},
        {"version": 5, "rows": 1.5, "connections": 120, "strength_bits": 32},
        {"version": 5, "rows": 1, "connections": 120, "strength_bits": 16},
        {"version": 5, "rows": 1},
        [],
    ],
)
def test_headers_that_cannot_be(header: Any) -> None:
    packed = pack(random_run(10, 120))
    group = {"attributes": {"giaann_run": header}, "zarr_format": 3, "node_type": "group"}
    entries = {**packed.entries, "zarr.json": json.dumps(group).encode()}
    with pytest.raises(StoreDamagedError):
        unpack(PackedRun(entries, packed.rows, packed.connections, packed.nbytes))


def test_a_newer_version_is_distinguished_from_damage() -> None:
    packed = pack(random_run(11, 120))
    newer = packed.entries["zarr.json"].replace(b'"version":5', b'"version":9')
    assert newer != packed.entries["zarr.json"]
    with pytest.raises(StoreFormatError, match="version 9"):
        PackedRun.from_entries({**packed.entries, "zarr.json": newer})
    with pytest.raises(StoreDamagedError):
        PackedRun.from_entries({})


def test_damaged_lengths_do_not_run_away() -> None:
    packed = pack(random_run(12, 120))
    document = json.loads(packed.entries["strength/zarr.json"])
    for shape, chunk in ((10**17, 1), (10**17, 10**17), (60, 10**17), (-1, 1), (60, 0), (60, True)):
        document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"] = [shape], [chunk]
        entries = {**packed.entries, "strength/zarr.json": json.dumps(document).encode()}
        with pytest.raises(StoreDamagedError):
            unpack(PackedRun(entries, packed.rows, packed.connections, packed.nbytes))


def test_a_target_is_stored_once_for_all_its_segments() -> None:
    run = random_run(13, 20_000)
    segment, neuron, branch = unpack_target(run.target)
    assert set(segment.tolist()) == set(range(8))
    source = np.repeat(run.source, np.diff(run.pointer))
    distinct = np.unique(np.stack([source, neuron, branch]), axis=1).shape[1]
    assert distinct < len(run)
    lengths = {name: array.shape[0] for name, array in as_group(pack(run)).arrays()}
    assert lengths["target_column"] == lengths["strength"] == distinct
    assert lengths["strength_change"] == len(run) - distinct


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 60), st.sampled_from([7, 50, CHUNK]))
def test_a_range_of_rows_is_that_of_the_whole_run(seed: int, low: int, high: int, chunk: int) -> None:
    run, ends = random_run(seed, 200), sorted(pack_neuron([low, high], 0).tolist())
    packed = pack(run, chunk)
    part = RowReader(packed.read).between(*ends)
    kept = (run.source >= ends[0]) & (run.source < ends[1])
    per_connection = np.repeat(kept, np.diff(run.pointer))
    assert_same(
        part,
        Run(
            run.source[kept],
            np.concatenate([[0], np.cumsum(np.diff(run.pointer)[kept])]).astype(np.int64),
            run.target[per_connection],
            run.strength[per_connection],
        ),
    )


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=20), st.sampled_from([7, 50]))
def test_rows_read_in_any_order_are_those_of_the_run(seed: int, columns: list[int], chunk: int) -> None:
    run = random_run(seed, 200)
    packed = pack(run, chunk)
    rows = RowReader(packed.read)
    for neuron in pack_neuron(columns, 0).tolist() + run.source[::-7].tolist():
        found, expected = rows.between(neuron, neuron + 1).row(neuron), run.row(neuron)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert np.array_equal(found.target, expected.target)
            assert np.array_equal(found.strength, expected.strength)


@pytest.fixture(scope="module")
def large() -> tuple[Run, PackedRun]:
    """A run whose chunks have several frames."""
    run = random_run(21, 300_000)
    return run, pack(run, 1 << 17)


def test_of_large_chunks_some_frames_are_decoded(large: tuple[Run, PackedRun]) -> None:
    run, packed = large
    # Less than the frames of a row, so that all are decoded again and again.
    rows = RowReader(packed.read, cache_bytes=1 << 16)
    for row in [*range(0, run.rows, run.rows // 7), run.rows - 1]:
        before, neuron = rows.decoded, int(run.source[row])
        found, expected = rows.between(neuron, neuron + 1).row(neuron), run.row(neuron)
        assert found is not None
        assert expected is not None
        assert np.array_equal(found.target, expected.target)
        assert np.array_equal(found.strength, expected.strength)
        assert 0 < rows.decoded - before < rows.values / 2
    assert_same(rows.between(0, NEURON_MASK), run)


def test_targets_of_some_rows_of_large_chunks(large: tuple[Run, PackedRun]) -> None:
    run, packed = large
    wanted = np.append(run.source[3 :: run.rows // 5], NEURON_MASK)
    source, pointer, key, segments = read_rows(packed.read, wanted)
    assert np.array_equal(source, wanted[:-1])
    for at, neuron in enumerate(source.tolist()):
        row = run.row(neuron)
        assert row is not None
        segment, target, branch = unpack_target(row.target)
        keys, place = np.unique(target << BRANCH_BITS | branch, return_inverse=True)
        part = slice(*pointer[at : at + 2].tolist())
        assert np.array_equal(key[part], keys)
        assert np.array_equal(segments[part], np.bincount(place, 1 << segment.astype(np.int64)).astype(np.uint32))


def test_any_decoder_reads_large_chunks(large: tuple[Run, PackedRun]) -> None:
    run, packed = large
    assert len(np.asarray(as_group(packed)["strength"])) > 1 << 16
    assert_same(unpack(packed), run)
    # Zarr writes a chunk as one frame, which is no chunk of ours: of a part of it all would have to be decoded.
    written = tampered(packed, "strength", lambda v: v)
    assert_same(unpack(written), run)
    with pytest.raises(StoreDamagedError, match="no table of 4 frames"):
        RowReader(written.read).between(int(run.source[-1]), NEURON_MASK)


def test_runs_of_earlier_versions_are_refused_by_name() -> None:
    packed = pack(random_run(11, 120))
    earlier = {**packed.entries, "zarr.json": packed.entries["zarr.json"].replace(b'"version":5', b'"version":1')}
    with pytest.raises(StoreFormatError, match="format version 1; expected version 5, 6 or 7"):
        PackedRun.from_entries(earlier)
    with pytest.raises(StoreFormatError, match="format version 1; expected version 5, 6 or 7"):
        RowReader(replace(packed, entries=earlier).read)
    bare = json.loads(packed.entries["row_targets/zarr.json"])
    for kept in ([], ["crc32c"]):
        attributes = {name: bare["attributes"][name] for name in kept}
        entry = json.dumps({**bare, "attributes": attributes}).encode()
        with pytest.raises(StoreDamagedError):
            RowReader(replace(packed, entries={**packed.entries, "row_targets/zarr.json": entry}).read)


def test_of_a_range_only_its_chunks_are_read() -> None:
    packed, asked = pack(random_run(5, 600), 16), set()

    def read(names: Sequence[str]) -> dict[str, bytes]:
        asked.update(names)
        return packed.read(names)

    rows = RowReader(read)
    assert not [name for name in asked if "/c/" in name], "opening reads metadata alone"
    part = rows.between(*pack_neuron([25, 26], 0).tolist())
    assert 0 < len(part) < 60
    targets = [
        name for name in packed.entries if name.startswith(("target_column/c", "strength/c", "strength_change/c"))
    ]
    assert 0 < len(asked & set(targets)) < len(targets) / 4
    sources = {name for name in packed.entries if name.startswith("source_column/c")}
    assert 0 < len(asked & sources) < len(sources) / 4


def test_a_range_that_entries_contradict_is_damage() -> None:
    for name, change in (
        ("row_targets", lambda v: v + 1),
        ("strength", lambda v: v * 0),
        ("target_segments", lambda v: v | 1),
    ):
        packed = tampered(pack(random_run(5, 100), 16), name, change)
        with pytest.raises(StoreDamagedError):
            RowReader(packed.read).between(0, NEURON_MASK)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> tuple[Run, PackedRun]:
    """A run whose targets are numbers of names."""
    monkeypatch.setattr(target_names, "LEAST_TARGETS", 100)
    run = hashed_run(22, 2000)
    return run, pack(run, 300)


def test_hashes_of_targets_are_stored_once(named: tuple[Run, PackedRun]) -> None:
    run, packed = named
    assert_same(unpack(packed), run)
    group = as_group(packed)
    values = {name: np.asarray(array[:]) for name, array in group.arrays()}
    pairs = np.stack([np.repeat(run.source, np.diff(run.pointer)), unpack_target(run.target)[1]])
    neuron, counts = np.unique(np.unique(pairs, axis=1)[1], return_counts=True)
    assert len(values["name_column"]) == len(values["name_feature"]) == len(neuron) < 300
    names = pack_neuron(
        group["name_column"].attrs["frame_first"][0] + np.cumsum(values["name_column"], dtype=np.uint32),
        values["name_feature"],
    )
    assert np.array_equal(names, neuron[np.lexsort((neuron, -counts))])
    assert values["target_column"].dtype == np.uint8
    assert values["target_segments"].dtype == np.uint8
    level = json.loads(packed.entries["strength/zarr.json"])["codecs"][1]["configuration"]["level"]
    assert (
        level
        == 1
        < json.loads(pack(random_run(3, 50)).entries["strength/zarr.json"])["codecs"][1]["configuration"]["level"]
    )
    blocks = [rows_between(run, at, min(at + 7, len(run.source))) for at in range(0, len(run.source), 7)]
    assert pack_blocks(blocks, 300).entries == packed.entries


@pytest.mark.parametrize("values", [2, 255, 256])
def test_few_wide_values_are_stored_as_places(values: int) -> None:
    """With 0, by which chunks are padded, 256 of them fit a byte."""
    rng = np.random.default_rng(values)
    distinct = np.sort(rng.choice(np.arange(1 << 20, 1 << 24), values, replace=False)).astype(np.uint32)
    pieces = [distinct[rng.integers(0, values, 70_000)], distinct[:1], distinct]
    framing = FRAMINGS["target_segments"]
    entries = encode_array("target_segments", pieces, CHUNK, framing)
    attributes = json.loads(entries["target_segments/zarr.json"])["attributes"]
    assert ("distinct" in attributes) == (values < 256)
    if values < 256:
        assert attributes["distinct"][:-1] == [0, *distinct.tolist()]
    found = decode_array(read_layout("target_segments", entries), entries)
    assert np.array_equal(found, np.concatenate(pieces))


def test_rows_of_named_targets_are_those_of_the_run(named: tuple[Run, PackedRun]) -> None:
    run, packed = named
    rows = RowReader(packed.read)
    for neuron in run.source[::97].tolist():
        found, expected = rows.between(neuron, neuron + 1).row(neuron), run.row(neuron)
        assert found is not None
        assert expected is not None
        assert np.array_equal(found.target, expected.target)
    assert_same(rows.between(0, NEURON_MASK + 1), run)
    _, pointer, key, _ = read_rows(packed.read, run.source[5:7])
    assert np.array_equal(np.unique(key >> 7), np.unique(unpack_target(run.target[run.pointer[5] : run.pointer[7]])[1]))
    assert pointer[-1] == len(key)
    columns = np.concatenate([run.source, unpack_target(run.target)[1]]) >> 25
    assert np.array_equal(rows.names()[0], np.unique(columns))
    assert_same(unpack(split_packed(packed, 0, upper=True)), run)


def test_names_of_some_rows_of_large_chunks() -> None:
    run = hashed_run(24, 300_000, words=200_000)
    packed = pack(run)
    rows = RowReader(packed.read)
    assert_same(rows.between(0, NEURON_MASK + 1), run)
    rows.release()
    before = rows.decoded
    neuron = int(run.source[-1])
    assert len(rows.between(neuron, neuron + 1)) < 20
    assert rows.decoded - before < rows.values / 3


def test_small_or_varied_tables_have_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b'"version":5' in pack(hashed_run(23, 2000)).entries["zarr.json"]
    monkeypatch.setattr(target_names, "LEAST_TARGETS", 100)
    assert b'"version":7' in pack(hashed_run(23, 2000)).entries["zarr.json"]
    for run in (hashed_run(23, 2000, words=5000), random_run(23, 2000)):
        packed = pack(run)
        assert b'"version":5' in packed.entries["zarr.json"]
        assert_same(unpack(packed), run)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("target_column", lambda v: np.full_like(v, 1)),
        ("target_feature", lambda v: np.full_like(v, 4000)),
        ("target_segments", lambda v: np.full_like(v, 200)),
        ("name_column", lambda v: v + 1),
    ],
)
def test_names_that_contradict_a_run(named: tuple[Run, PackedRun], name: str, change: Any) -> None:
    changed = tampered(named[1], name, change)
    with pytest.raises(StoreDamagedError):
        unpack(changed)
    with pytest.raises(StoreDamagedError):
        RowReader(changed.read).between(0, NEURON_MASK)


def test_any_changed_byte_of_the_metadata_of_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_names, "LEAST_TARGETS", 100)
    # In several chunks, as one may be larger than its values.
    packed = pack(hashed_run(22, 300), 30)
    assert "name_column/zarr.json" in packed.entries
    for key in ("name_column/zarr.json", "target_segments/zarr.json", "zarr.json"):
        value = packed.entries[key]
        for at in range(len(value)):
            changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            with pytest.raises((StoreDamagedError, StoreFormatError)):
                unpack(replace(packed, entries={**packed.entries, key: changed}))
