"""Bundles that were changed: all are refused, or found by an audit with the stated probability."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
import pytest
from distributed import Client
from numcodecs import zstd
from support.bundles import (
    fault_of,
    members_of,
    moved,
    sign_again,
    sign_members,
    times,
    with_strengths,
    write_members,
)
from support.examples import scaled

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.errors import BundleError, OptionError, StoreDamagedError, StrengthOverflowError
from giaann_dask.islands import archive, definition
from giaann_dask.islands.archive import writing_archive
from giaann_dask.islands.auditing import draw_groups
from giaann_dask.islands.bundle import BundleGroup, BundleWriter, open_bundle
from giaann_dask.islands.definition import Island, generate_key, read_island, read_private_key
from giaann_dask.keys import Integers, word_key
from giaann_dask.models import totals_of
from giaann_dask.models.contexts.kinds import CONTEXTS, count_kinds
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.contexts.stored_tables import StoredTables
from giaann_dask.models.totals import LARGEST_STRENGTH, GroupCounts
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.predictor import sentences_of
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.packed_arrays import to_json
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.run import RegionRun, Run, select_rows
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text import vocabulary
from giaann_dask.text.ledger import LedgerEntry, identify
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.tokens import Part

TEXTS = sample_text().read_text(encoding="utf-8").split("\n\n")[:5]


class Packed(NamedTuple):
    folder: Path
    bundle: Path
    island: Island
    key: Path


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module", params=["v1", "v2", "contexts"])
def packed(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A bundle of five groups with their text, and the owner's network, in which nothing is yet."""
    folder, profile = tmp_path_factory.mktemp(request.param), request.param
    rule = gd.Specification(profile=profile, regions=1, **({} if profile == "contexts" else {"flags": "canonical"}))
    for name in ("mill", "forge", "stranger"):
        generate_key(folder / f"{name}.key")
    keys = {name: folder / f"{name}.key.pub" for name in ("mill", "forge")}
    gd.create_island(folder / "owner", folder / "island", keys, specification=rule)
    gd.join_island(folder / "island", folder / "net")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    small = gd.TextOptions(reading=ReadOptions(part_characters=600))
    gd.train(folder / "texts.jsonl", folder / "net", client=client, text=small)
    report = gd.pack_bundle(
        folder / "net",
        folder / "texts.jsonl",
        folder / "bundle",
        island=folder / "island",
        key=folder / "mill.key",
        client=client,
        text=small,
        options=gd.PackOptions(offer_text=True, group_characters=600),
    )
    assert report.groups >= 5
    return Packed(folder, folder / "bundle", read_island(folder / "island"), folder / "mill.key")


def flipped(rng: random.Random, made: Packed, path: Path) -> Path:
    """Flip one bit of a header, a content or the padding of any member."""
    content = made.bundle.read_bytes()
    first, size = rng.choice(places_of(made.bundle))
    at = first + rng.randrange(size) if rng.random() < 0.9 else len(content) - 1
    return flip(path, content, at, rng)


def places_of(bundle: Path) -> list[tuple[int, int]]:
    """Return first byte and size of each header, content and padding of a bundle."""
    content, places = bundle.read_bytes(), []
    for name, each in members_of(bundle).items():
        begin = content.index(name.encode().ljust(100, b"\0"))
        for size in (512, len(each), -len(each) % 512):
            places.append((begin, size))
            begin += size
    return [each for each in places if each[1]]


def flip(path: Path, content: bytes, at: int, rng: random.Random) -> Path:
    changed = bytearray(content)
    changed[at] ^= 1 << rng.randrange(8)
    path.write_bytes(changed)
    return path


def swapped(rng: random.Random, made: Packed, path: Path) -> Path:
    """Exchange two members, their contents alone or with their names."""
    members = list(members_of(made.bundle).items())
    one, other = rng.sample(range(len(members)), 2)
    if rng.random() < 0.5:
        members[one], members[other] = members[other], members[one]
    elif members[one][1] != members[other][1]:
        first, second = members[one], members[other]
        members[one], members[other] = (first[0], second[1]), (second[0], first[1])
    else:
        del members[one]
    return write_members(path, dict(members))


def wrong_key(rng: random.Random, made: Packed, path: Path) -> Path:
    """Sign with an unlisted key, or take the signature or the name of another key."""
    stranger = made.folder / "stranger.key"
    if rng.random() < 0.4:
        listed = replace(made.island, keys={**made.island.keys, "stranger": "00" * 32})
        return sign_again(made.bundle, path, listed, stranger, lambda *each: each, set())
    members = members_of(made.bundle)
    if rng.random() < 0.5:
        members["signature"] = read_private_key(stranger).sign(members["manifest.json"])
    else:
        manifest = json.loads(members["manifest.json"])
        manifest["signer"] = made.island.keys["forge"]
        members["manifest.json"] = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return write_members(path, members)


def other_island(rng: random.Random, made: Packed, path: Path) -> Path:
    """Send again what a listed key has signed for an island of another network, with the same names or others."""
    island = made.island
    other = replace(island, **rng.choice([{"features": (*island.features, "more")}, {"digest": island.digest[::-1]}]))
    return sign_again(made.bundle, path, island, made.key, lambda *each: each, set(), signed_for=other)


def negative(rng: random.Random, made: Packed, path: Path) -> Path:
    """Make strengths negative or 0, others larger, and sign again."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        def strengths(table: Run) -> np.ndarray:
            units = table.strength.astype(np.int64)
            one, other = rng.sample(range(len(units)), 2)
            units[other] += units[one] + rng.choice([0, units[one]])
            units[one] -= units[other] - units[one]
            return units

        if increments.neurons.connections and rng.random() < 0.4:
            return group, with_strengths(increments, lambda table: -table.strength.astype(np.int64), "neurons")
        return group, with_strengths(increments, strengths)

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def inflated(rng: random.Random, made: Packed, path: Path) -> Path:
    """Make some strengths larger, or all of them, and sign again."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        def strengths(table: Run) -> np.ndarray:
            units = table.strength.astype(np.int64)
            chosen = np.array([rng.random() < rng.choice([0.001, 1]) for _ in units])
            chosen[rng.randrange(len(units))] = True
            # Also so large that their sum would be the right one modulo 2 ** 64.
            units[chosen] += rng.choice([1, 10 << 20, 1 << 62])
            return units

        return group, with_strengths(increments, strengths)

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def own_strengths(rng: random.Random, made: Packed, path: Path) -> Path:
    """Make the own strength of a neuron larger, which profile contexts has none of, or add one there, and sign again.

    In v1 the lengths do not imply the totals beyond the first segments, so that some of it is found by an audit alone.
    """

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        if not increments.neurons.connections:
            return group, increments._replace(neurons=increments.connections)

        def strengths(table: Run) -> np.ndarray:
            units = table.strength.astype(np.int64)
            one = rng.randrange(len(units))
            units[one] += rng.choice([1, 1 << 62])
            return units

        return group, with_strengths(increments, strengths, "neurons")

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def other_counts(rng: random.Random, made: Packed, path: Path) -> Path:
    """Change the numbers of sequences or pairs that the ledger has, and sign again."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        counts = group.counts
        length, number = counts.lengths[-1]
        choices = [
            lambda: replace(counts, by_status=(counts.by_status[0] + 1, *counts.by_status[1:])),
            lambda: replace(counts, lengths=(*counts.lengths[:-1], (length, number + 1))),
            lambda: replace(counts, lengths=(*counts.lengths[:-1], (length + 1, number))),
        ]
        if counts.pairs:
            segment, index, pairs = counts.pairs[0]
            choices.append(lambda: replace(counts, pairs=((segment, index, pairs + 1), *counts.pairs[1:])))
        entries = group.entries
        if rng.random() < 0.3:
            entries = (replace(entries[0], sequences=entries[0].sequences + 1), *entries[1:])
        return BundleGroup(entries, rng.choice(choices)()), increments

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def moving(rng: random.Random, made: Packed, path: Path) -> Path:
    """Move strength to another connection of the segment, which only totals of profile contexts show; sign again."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        return group, with_strengths(increments, lambda table: moved(rng, table))

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def moving_unseen(rng: random.Random, made: Packed, path: Path) -> Path:
    """Move strength to another connection of the same target, which no total shows, and sign again."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        return group, with_strengths(increments, lambda table: moved(rng, table, unseen=True))

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def other_text(rng: random.Random, made: Packed, path: Path) -> Path:
    """Exchange the increments of a group with those of another one, with their counts, and sign again."""
    bundle = open_bundle(made.bundle, made.island)
    one, other = rng.sample(range(5), 2)

    def change(group: BundleGroup, _: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        taken = bundle.groups[other]
        total = sum(entry.sequences for entry in taken.entries)
        entries = (replace(group.entries[0], sequences=total), *(replace(e, sequences=0) for e in group.entries[1:]))
        return BundleGroup(entries, taken.counts), bundle.run(other)

    return sign_again(made.bundle, path, made.island, made.key, change, {one})


# What a kind of mutation must be found by, and how many of it are tried (see `scaled`).
KINDS: dict[Callable[[random.Random, Packed, Path], Path], tuple[set[str], int]] = {
    flipped: ({"opened"}, 16),
    swapped: ({"opened"}, 8),
    wrong_key: ({"opened"}, 8),
    other_island: ({"opened"}, 4),
    negative: ({"opened", "increments"}, 6),
    inflated: ({"opened", "increments"}, 8),
    own_strengths: ({"opened", "increments", "audit"}, 6),
    other_counts: ({"opened", "increments"}, 8),
    moving: ({"increments", "audit"}, 4),
    moving_unseen: ({"audit"}, 4),
    other_text: ({"audit"}, 4),
}


def test_every_mutation_is_refused(packed: Packed, tmp_path: Path) -> None:
    assert fault_of(packed.bundle, packed.island) == ""
    rng = random.Random(f"islands {packed.island.specification.profile}")
    for mutate, (found, share) in KINDS.items():
        for number in range(scaled(share)):
            path = mutate(rng, packed, tmp_path / "changed")
            assert path.read_bytes() != packed.bundle.read_bytes()
            assert fault_of(path, packed.island) in found, (mutate.__name__, number)


@pytest.mark.parametrize("packed", ["v1"], indirect=True)
def test_a_flipped_bit_is_found_in_every_part(packed: Packed, tmp_path: Path) -> None:
    """In headers, contents and padding of members, and in the end of the file."""
    rng, content = random.Random(4), packed.bundle.read_bytes()
    places = places_of(packed.bundle)[::5]
    ends = (max(first + size for first, size in places), len(content) - 1)
    for at in (*(first + rng.randrange(size) for first, size in places), *ends):
        assert fault_of(flip(tmp_path / "changed", content, at, rng), packed.island) == "opened", at


def test_the_audit_finds_what_it_says(packed: Packed, tmp_path: Path) -> None:
    """Of the sequences that are drawn, each is as probable as any other, whatever the bundle and its groups."""
    rng = random.Random(3)
    sequences, drawn = {number: rng.randrange(9) for number in range(40)}, 5
    false = {2, 5, 21, 39}
    draws = [draw_groups(sequences, drawn, seed, packed.bundle.name) for seed in range(2000)]
    share = np.mean([bool(false & {*each}) for each in draws])
    total, wrong = sum(sequences.values()), sum(sequences[number] for number in false)
    exact = 1 - math.comb(total - wrong, drawn) / math.comb(total, drawn)
    assert abs(share - exact) < 4 * math.sqrt(exact * (1 - exact) / len(draws))
    assert exact >= 1 - (1 - wrong / total) ** drawn
    assert set(itertools.chain.from_iterable(draws)) == {number for number, size in sequences.items() if size}
    assert draw_groups(sequences, total, 0, "") == [number for number, size in sequences.items() if size]
    # A bundle with one false group is refused if and only if that is drawn.
    path = moving_unseen(random.Random(1), packed, tmp_path / "moved")
    changed, whole = (open_bundle(each, packed.island) for each in (path, packed.bundle))
    (false_group,) = [
        number
        for number in range(len(whole.groups))
        if unpack(changed.run(number).connections).strength.tolist()
        != unpack(whole.run(number).connections).strength.tolist()
    ]
    sizes = {number: sum(group.counts.by_status) for number, group in enumerate(whole.groups)}
    for seed in range(6):
        hit = false_group in draw_groups(sizes, 2, seed, changed.identity)
        assert fault_of(path, packed.island, audit=2, seed=seed) == ("audit" if hit else "")


def test_refused_bundles_change_nothing(
    packed: Packed, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line: one line, exit code 2, no commit and no file, for the other bundles of the call, too."""
    owner, island = packed.folder / "owner", packed.folder / "island"
    before = gd.open(owner).commits()
    files = sorted(packed.folder.iterdir())
    rng = random.Random(2)
    for mutate in (flipped, wrong_key, inflated, moving_unseen):
        path = mutate(rng, packed, tmp_path / "changed")
        command = ["island", "merge", owner, packed.bundle, path, "--island", island, "--audit", 99, "--workers", "0"]
        if mutate in (inflated, moving_unseen):
            # Its text is that of the first one.
            command.remove(packed.bundle)
        code = run([*map(str, command)])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), mutate.__name__
        assert "changed" in err
        assert gd.open(owner).commits() == before
        assert sorted(packed.folder.iterdir()) == files
    # A replay, under another listed key, adds nothing.
    again = sign_again(
        packed.bundle, tmp_path / "again", packed.island, packed.folder / "forge.key", lambda *e: e, set()
    )
    bundles = [packed.bundle, again, packed.bundle]
    reports = gd.merge_bundles(owner, bundles, island=island, audit=99, client=client)
    assert [bool(each.merged) for each in reports] == [True, False, False]
    assert gd.open(owner).digest() == gd.open(packed.folder / "net").digest()
    assert len(gd.open(owner).commits()) == len(before) + 1


# Values that no field has, and texts of JSON that Python cannot, or barely, read.
STRANGE = (None, {}, -1, 1.5, True, 1 << 70, [[]], {"a": None}, ["a", "a"], [1], "\ud800")
DEEP, LONG = b"[" * 100_000, b"9" * 5_000


def refused(path: Path, island: Island) -> None:
    """Check that a bundle is refused with one line."""
    with pytest.raises(BundleError) as found:
        open_bundle(path, island)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 1000


def strange_values(number: int) -> Sequence[object]:
    """Return some of the strange values; all are among those of four numbers in a row."""
    return STRANGE[number % 4 :: 4]


def with_fields(stored: dict[str, object]) -> Iterator[object]:
    """Yield copies of an object of JSON, each without a field or with a strange value of it."""
    for number, name in enumerate(stored):
        yield {key: value for key, value in stored.items() if key != name}
        yield from ({**stored, name: value} for value in strange_values(number))


@pytest.mark.parametrize("packed", ["contexts"], indirect=True)
def test_malformed_but_signed_bundles_are_refused_with_a_line(packed: Packed, tmp_path: Path) -> None:
    members, path = members_of(packed.bundle), tmp_path / "changed"
    assert fault_of(sign_members(path, members, packed.key), packed.island) == ""
    for changed in (*with_fields(json.loads(members["manifest.json"])), []):
        refused(sign_members(path, members, packed.key, changed), packed.island)
    for name in ("names.json", "groups/00000000/ledger.json"):
        contents = [b"", b"\xff", DEEP, LONG, b"[]", b"null"]
        contents += [json.dumps(changed).encode() for changed in with_fields(json.loads(members[name]))]
        for content in contents:
            refused(sign_members(path, {**members, name: content}, packed.key), packed.island)


@pytest.mark.parametrize("packed", ["contexts"], indirect=True)
def test_no_more_of_a_bundle_is_read_than_it_may_have(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, path = packed.bundle.read_bytes(), tmp_path / "changed"
    # Files with holes take no room: an end without end, and a manifest of 4 GiB.
    path.write_bytes(content)
    os.truncate(path, 1 << 40)
    refused(path, packed.island)
    header = tarfile.TarInfo("manifest.json")
    header.size = 1 << 32
    path.write_bytes(header.tobuf(tarfile.USTAR_FORMAT))
    os.truncate(path, 512 + (1 << 32))
    signature = tarfile.TarInfo("signature")
    signature.size = 64
    with path.open("ab") as file:
        file.write(signature.tobuf(tarfile.USTAR_FORMAT) + bytes(512) + bytes(1024))
    refused(path, packed.island)
    for what in (["island", "show", path], ["island", "show", path, "--island", packed.folder / "island"]):
        assert run([*map(str, what)]) == 2
    members = members_of(packed.bundle)
    monkeypatch.setattr(archive, "_MOST_MEMBERS", len(members) - 1)
    refused(packed.bundle, packed.island)
    with pytest.raises(OptionError, match="group_characters"):
        write_members(path, members)


@pytest.mark.parametrize("packed", ["contexts"], indirect=True)
def test_what_is_no_ordinary_file_is_no_bundle(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "none"):
        for arguments in (["--island", packed.folder / "island"], []):
            assert run(["island", "show", str(path), *map(str, arguments)]) == 2
            assert capsys.readouterr().err.count("\n") == 1
    # An island file and a key without an end.
    for arguments in (
        ["show", packed.bundle, "--island", "/dev/zero"],
        ["keys", packed.folder / "island", "--key", "a=/dev/zero"],
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(definition, "_MOST", 1 << 20)
            assert run(["island", *map(str, arguments)]) == 2
        assert "more than" in capsys.readouterr().err


def test_chunks_decompress_to_no_more_than_they_hold() -> None:
    """A little of Zstandard makes terabytes; what an array has is known before."""
    packed = pack(Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([7, 9], np.int32)))
    document = json.loads(packed.entries["strength/zarr.json"])
    bomb = zstd.Zstd(level=3).encode(bytes(1 << 26))
    assert len(bomb) < 1 << 13
    for length in (2, 1 << 26, 1 << 40):
        checksum = google_crc32c.value(bomb)
        document["chunk_grid"]["configuration"]["chunk_shape"] = [length]
        document["attributes"]["crc32c"] = [checksum]
        entries = {
            **packed.entries,
            "strength/zarr.json": to_json(document),
            "strength/c/0": bomb + checksum.to_bytes(4, "little"),
        }
        forged = replace(packed, entries=entries)
        tracemalloc.start()
        with pytest.raises(StoreDamagedError):
            unpack(forged)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_forged_counts_are_refused(packed: Packed, tmp_path: Path) -> None:
    """With or without text, and with totals that agree with them."""
    for factor, offer_text in ((10**12, True), (10**12, False), (10**5, True)):
        refused(
            sign_again(
                packed.bundle, tmp_path / "forged", packed.island, packed.key, times(factor), {2}, offer_text=offer_text
            ),
            packed.island,
        )


def test_contexts_are_counted_as_a_text_would() -> None:
    """Profile contexts is read by words that are counted alone, too; forged ones made a network that never opened."""
    rule = gd.Specification(profile="contexts")
    stream = TokenStream.from_documents([[["a", "dog", "and", "a", "cat"], ["the", "dog", "slept"]]])
    counts = GroupCounts(by_status=(2, 0, 0, 0, 0), lengths=((3, 1), (5, 1)))
    whole = count_kinds(stream, [CONTEXT_NAMES.index(name) for name in rule.contexts])
    row = np.repeat(whole.source, np.diff(whole.pointer))

    def check(source: Integers, target: Integers, strength: Integers) -> None:
        order = np.lexsort((target, source))
        keys, lengths = np.unique(source, return_counts=True)
        forged = Run(keys, np.append(0, np.cumsum(lengths)), target[order], strength[order])
        totals_of(rule).check_run(RegionRun(forged, Run.empty()), counts, (0, 10))

    strength = whole.strength.astype(np.int64)
    check(row, whole.target, strength)
    other, branch = np.int64(word_key("never")) << 7, np.int64(1)
    for kind in np.unique(whole.target >> 58).tolist():
        # The last connection of a kind, with another word, on a branch, or after another context.
        at = np.flatnonzero(whole.target >> 58 == kind)[-1:]
        changes = [(row, np.where(np.arange(len(row)) == at, (kind << 58) | other, whole.target))] * (
            kind not in (0, EXTENDS)
        )
        changes.append((row, np.where(np.arange(len(row)) == at, whole.target | branch, whole.target)))
        changes += [(np.where(np.arange(len(row)) == at, 12345, row), whole.target)] * (kind in (0, EXTENDS))
        for source, target in changes:
            with pytest.raises(BundleError):
                check(source, target, strength)
    # As often alone as after the word before.
    one, two = np.flatnonzero(whole.target >> 58 == 1)[:2]
    moved_strength = strength.copy()
    moved_strength[one] += 1
    moved_strength[two] -= 1
    with pytest.raises(BundleError):
        check(row, whole.target, moved_strength)


@pytest.mark.parametrize("packed", ["contexts"], indirect=True)
def test_a_network_stays_readable_whatever_is_merged(packed: Packed, client: Client, tmp_path: Path) -> None:
    """What only an audit finds is a lie about a text, which a network may not end in an error of."""

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        """Let all words follow other words than they did, so that longer contexts extend ones without them."""
        run = unpack(increments.connections)
        single = np.flatnonzero(run.target[run.pointer[:-1]] >> 58 == 1)
        source = run.source.copy()
        source[single] = np.roll(source[single], 1)
        order = np.argsort(source)
        forged = select_rows(Run(source, run.pointer, run.target, run.strength), order)
        return group, increments._replace(connections=pack(forged))

    path = sign_again(packed.bundle, tmp_path / "other", packed.island, packed.key, change, set(range(5)))
    owner = gd.join_island(packed.folder / "island", tmp_path / "owner")
    gd.merge_bundles(owner.path, [path], island=packed.folder / "island", client=client)
    reader = NetworkStore(owner.path).open("main")
    text = "\n\n".join(TEXTS)
    if reader.repeats() is not None:
        StoredTables(reader, range(1, len(CONTEXTS))).of(TokenStream.from_documents([sentences_of(text)]))
    found = gd.open(owner.path).generate(text, client=client, options=gd.GenerationOptions(max_tokens=1))
    assert len(found.tokens) == 1


def test_bundles_that_overflow_together_change_nothing(client: Client, tmp_path: Path) -> None:
    rule = gd.Specification(flags="canonical", regions=1, strength_bits=30, proximity_scale=999_999.0)
    generate_key(tmp_path / "key")
    owner, island = tmp_path / "owner", tmp_path / "island"
    gd.create_island(owner, island, {"mill": tmp_path / "key.pub"}, specification=rule)
    bundles = []
    for number, text in enumerate(TEXTS[:2]):
        network, bundle = gd.join_island(island, tmp_path / f"{number}"), tmp_path / f"{number}.bundle"
        gd.train([text], network.path, client=client)
        gd.pack_bundle(network.path, [text], bundle, island=island, key=tmp_path / "key", client=client)
        honest = open_bundle(bundle, read_island(island))
        factor = LARGEST_STRENGTH // int(unpack(honest.run(0).connections).strength.max())
        forged = tmp_path / f"{number}.forged"
        sign_again(bundle, forged, read_island(island), tmp_path / "key", times(factor), {0}, offer_text=False)
        bundles.append((bundle, forged))
    (first, forged), (_, other) = bundles
    before = gd.open(owner).commits()
    for both in ((forged, other), (first, forged, other)):
        with pytest.raises((StrengthOverflowError, BundleError)):
            gd.merge_bundles(owner, both, island=island, client=client)
        assert gd.open(owner).commits() == before
    gd.merge_bundles(owner, [forged], island=island, client=client)
    held = gd.open(owner)
    digest = held.digest()
    with pytest.raises(StrengthOverflowError, match="together"):
        gd.merge_bundles(owner, [other], island=island, client=client)
    assert (gd.open(owner).commit, gd.open(owner).digest()) == (held.commit, digest)
    # What is true of the same settings is merged.
    assert gd.merge_bundles(tmp_path / "1", [first], island=island, client=client)[0].merged


def test_bundles_with_too_many_names_together_change_nothing(
    packed: Packed, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = gd.join_island(packed.folder / "island", tmp_path / "owner")
    monkeypatch.setattr(vocabulary, "MAXIMUM_FEATURES", 20)
    with pytest.raises(StrengthOverflowError, match="at most"):
        gd.merge_bundles(owner.path, [packed.bundle], island=packed.folder / "island", client=client)
    assert gd.open(owner.path).commits() == owner.commits()


def poisoned(made: Packed, path: Path, *, alone: bool) -> Path:
    """Name the text of somebody else as one without sequences, in a group of its own or beside other text."""
    entry = LedgerEntry(b"somebody's text.", 0, True)
    nothing = GroupCounts(by_status=(0,) * 5, lengths=())

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        if alone:
            return BundleGroup((entry,), nothing), PackedRegionRun(pack(Run.empty()), pack(Run.empty()))
        return BundleGroup((*group.entries, entry), group.counts), increments

    return sign_again(made.bundle, path, made.island, made.key, change, {2})


@pytest.mark.parametrize("alone", [False, True])
def test_no_identity_is_taken_without_its_text(packed: Packed, client: Client, tmp_path: Path, alone: bool) -> None:
    path = poisoned(packed, tmp_path / "poisoned", alone=alone)
    owner = gd.join_island(packed.folder / "island", tmp_path / "owner")
    before = owner.commits()
    for audit in (0, 1):
        with pytest.raises(BundleError):
            gd.merge_bundles(
                owner.path, [path], island=packed.folder / "island", audit=audit, audit_seed=1, client=client
            )
    assert gd.open(owner.path).commits() == before


def test_an_identity_stands_once(packed: Packed, tmp_path: Path) -> None:
    first = open_bundle(packed.bundle, packed.island).groups[0].entries[0]

    def change(group: BundleGroup, increments: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        rest = sum(entry.sequences for entry in group.entries)
        return BundleGroup((replace(first, sequences=rest),), group.counts), increments

    refused(sign_again(packed.bundle, tmp_path / "twice", packed.island, packed.key, change, {3}), packed.island)


@pytest.mark.parametrize("packed", ["v1"], indirect=True)
def test_a_part_without_sequences_is_merged_with_its_text(packed: Packed, client: Client, tmp_path: Path) -> None:
    """As bundles of earlier versions have them; those of this one leave them out."""
    part = Part("short.txt", "text", ("A dog.",), (0,))
    bundle, path = open_bundle(packed.bundle, packed.island), tmp_path / "earlier"
    with writing_archive(path) as opened:
        writer, group = BundleWriter(opened), bundle.groups[0]
        entries = (*group.entries, LedgerEntry(identify(part, bundle.tagger), 0, True))
        writer.add(BundleGroup(entries, group.counts), bundle.run(0), [*bundle.text(0), part])
        names = {"concepts": bundle.concepts, "features": bundle.features}
        writer.finish(names, packed.island, bundle.tagger, read_private_key(packed.key))
    owner = gd.join_island(packed.folder / "island", tmp_path / "owner")
    (report,) = gd.merge_bundles(owner, [path], island=packed.folder / "island", audit=1, client=client)
    assert report.audited == (0,)
    assert len(gd.open(owner.path).text_parts()) == len(entries)
