"""Bundles that were changed: all are refused, or found by an audit with the stated probability."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from distributed import Client
from support.bundles import (
    fault_of,
    members_of,
    moved,
    sign_again,
    with_strengths,
    write_members,
)

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.islands.auditing import draw_groups
from giaann_dask.islands.bundle import Group, open_bundle
from giaann_dask.islands.definition import Island, read_island
from giaann_dask.islands.signing import generate_key, read_private_key
from giaann_dask.runs.packing import PackedRegionRun, unpack
from giaann_dask.runs.run import Run
from giaann_dask.text.reading import ReadOptions

TEXTS = sample_text().read_text(encoding="utf-8").split("\n\n")[:5]
MUTATIONS = 200


class Packed(NamedTuple):
    folder: Path
    bundle: Path
    island: Island
    key: Path


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module", params=["v1", "v2", "best"])
def packed(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A bundle of five groups with their text, and the owner's network, in which nothing is yet."""
    folder, profile = tmp_path_factory.mktemp(request.param), request.param
    rule = gd.Specification(profile=profile, regions=1, **({} if profile == "best" else {"flags": "canonical"}))
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
        options=gd.PackOptions(offer_text=True, group_characters=1),
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

    def change(group: Group, increments: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
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

    def change(group: Group, increments: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
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
    """Make the own strength of a neuron larger, which profile best has none of, or add one there, and sign again.

    In v1 the lengths do not imply the totals beyond the first segments, so that some of it is found by an audit alone.
    """

    def change(group: Group, increments: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
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

    def change(group: Group, increments: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
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
        return Group(entries, rng.choice(choices)()), increments

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def moving(rng: random.Random, made: Packed, path: Path) -> Path:
    """Move strength to another connection of the same segment, which no total shows, and sign again."""

    def change(group: Group, increments: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
        return group, with_strengths(increments, lambda table: moved(rng, table))

    return sign_again(made.bundle, path, made.island, made.key, change, {rng.randrange(5)})


def other_text(rng: random.Random, made: Packed, path: Path) -> Path:
    """Exchange the increments of a group with those of another one, with their counts, and sign again."""
    bundle = open_bundle(made.bundle, made.island)
    one, other = rng.sample(range(5), 2)

    def change(group: Group, _: PackedRegionRun) -> tuple[Group, PackedRegionRun]:
        taken = bundle.groups[other]
        total = sum(entry.sequences for entry in taken.entries)
        entries = (replace(group.entries[0], sequences=total), *(replace(e, sequences=0) for e in group.entries[1:]))
        return Group(entries, taken.counts), bundle.run(other)

    return sign_again(made.bundle, path, made.island, made.key, change, {one})


# What a kind of mutation must be found by, and its share of them all.
KINDS: dict[Callable[[random.Random, Packed, Path], Path], tuple[set[str], int]] = {
    flipped: ({"opened"}, 26),
    swapped: ({"opened"}, 8),
    wrong_key: ({"opened"}, 6),
    other_island: ({"opened"}, 2),
    negative: ({"opened", "increments"}, 6),
    inflated: ({"opened", "increments"}, 7),
    own_strengths: ({"opened", "increments", "audit"}, 4),
    other_counts: ({"opened", "increments"}, 6),
    moving: ({"audit"}, 5),
    other_text: ({"audit"}, 3),
}


def test_every_mutation_is_refused(packed: Packed, tmp_path: Path) -> None:
    assert fault_of(packed.bundle, packed.island) == ""
    assert 3 * sum(share for _, share in KINDS.values()) >= MUTATIONS
    rng = random.Random(f"islands {packed.island.specification.profile}")
    for mutate, (found, share) in KINDS.items():
        for number in range(share):
            path = mutate(rng, packed, tmp_path / "changed")
            assert path.read_bytes() != packed.bundle.read_bytes()
            assert fault_of(path, packed.island) in found, (mutate.__name__, number)


@pytest.mark.parametrize("packed", ["v1"], indirect=True)
def test_a_flipped_bit_is_found_in_every_part(packed: Packed, tmp_path: Path) -> None:
    """In the header, content or padding of each member, and in the end of the file."""
    rng, content = random.Random(4), packed.bundle.read_bytes()
    places = places_of(packed.bundle)[::2]
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
    path = moving(random.Random(1), packed, tmp_path / "moved")
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
    for mutate in (flipped, wrong_key, inflated, moving):
        path = mutate(rng, packed, tmp_path / "changed")
        command = ["island", "merge", owner, packed.bundle, path, "--island", island, "--audit", 99, "--workers", "0"]
        if mutate in (inflated, moving):
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
