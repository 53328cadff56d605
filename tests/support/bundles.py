"""Bundles that were changed, with and without a new signature of a listed key."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.islands.archive import Archive, writing_archive
from giaann_dask.islands.auditing import count_again, draw_groups, equal_runs
from giaann_dask.islands.bundle import Bundle, BundleGroup, BundleWriter, open_bundle
from giaann_dask.islands.definition import Island, read_private_key
from giaann_dask.islands.merging import check_increments
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.run import Run
from giaann_dask.text.read_options import ReadOptions

Change = Callable[[BundleGroup, PackedRegionRun], tuple[BundleGroup, PackedRegionRun]]


def members_of(path: Path) -> dict[str, bytes]:
    archive = Archive(path)
    return {name: archive.read(name) for name in archive.names}


def write_members(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write members in the order of a mapping, whatever they are."""
    with writing_archive(path) as archive:
        for name, content in members.items():
            archive.add(name, content)
    return path


def sign_again(
    source: Path,
    path: Path,
    island: Island,
    key: Path,
    change: Change,
    chosen: set[int],
    *,
    signed_for: Island | None = None,
    offer_text: bool = True,
) -> Path:
    """Write a bundle whose chosen groups are changed, with a valid signature, for its island or another one."""
    bundle = open_bundle(source, island)
    with writing_archive(path) as archive:
        writer = BundleWriter(archive)
        for number, group in enumerate(bundle.groups):
            run = bundle.run(number)
            changed = change(group, run) if number in chosen else (group, run)
            writer.add(*changed, bundle.text(number) if offer_text and bundle.has_text(number) else None)
        names = {"concepts": bundle.concepts, "features": bundle.features}
        writer.finish(names, signed_for or island, bundle.tagger, read_private_key(key))
    return path


def sign_members(path: Path, members: Mapping[str, bytes], key: Path, manifest: object = None) -> Path:
    """Write members, signed by a listed key, with a manifest of them or the one that is given, whatever it is."""
    others = {name: members[name] for name in sorted(members) if name not in ("manifest.json", "signature")}
    if manifest is None:
        digests = {name: sha256(content).hexdigest() for name, content in others.items()}
        manifest = {**json.loads(members["manifest.json"]), "members": digests}
    signed = json.dumps(manifest).encode()
    signature = read_private_key(key).sign(b"giaann-dask bundle 2\n" + signed)
    return write_members(path, {**others, "manifest.json": signed, "signature": signature})


def times(factor: int) -> Change:
    """Return a change that makes all counts and strengths of a group so many times as large."""

    def change(group: BundleGroup, run: PackedRegionRun) -> tuple[BundleGroup, PackedRegionRun]:
        counts = group.counts
        larger = replace(
            counts,
            by_status=tuple(factor * number for number in counts.by_status),
            lengths=tuple((length, factor * number) for length, number in counts.lengths),
            pairs=tuple((*kind, factor * number) for *kind, number in counts.pairs),
        )
        entries = tuple(replace(entry, sequences=factor * entry.sequences) for entry in group.entries)
        for table in ("connections", "neurons"):
            if getattr(run, table).connections:
                run = with_strengths(run, lambda each: factor * each.strength.astype(np.int64), table)
        return BundleGroup(entries, larger), run

    return change


def with_strengths(
    run: PackedRegionRun, change: Callable[[Run], np.ndarray], table: str = "connections"
) -> PackedRegionRun:
    """Return increments with other strengths of the connections or neurons; those of 0 stay."""
    each = unpack(getattr(run, table))
    strength = change(each).astype(np.int64)
    return run._replace(**{table: pack(Run(each.source, each.pointer, each.target, strength))})


def moved(rng: random.Random, run: Run, *, unseen: bool = False) -> np.ndarray:
    """Return strengths of which one unit of a connection is moved to another one of the same segment.

    Where that is to be unseen, it is one of the same target, and in profile contexts outside the chain of contexts.
    """
    strength = run.strength.astype(np.int64)
    segment = run.target >> 58
    while True:
        one, other = rng.randrange(len(run)), rng.randrange(len(run))
        alike = run.target if unseen else segment
        if unseen and segment[one] in (2, 3, 4, EXTENDS):
            continue
        if one != other and alike[one] == alike[other] and strength[one] > 1:
            strength[one] -= 1
            strength[other] += 1
            return strength


def fault_of(path: Path, island: Island, audit: int | None = None, seed: int = 0) -> str:
    """Return how a bundle is refused: with an error when it is opened, by its increments, or by the audit; else ''."""
    try:
        bundle = open_bundle(path, island)
        groups = range(len(bundle.groups))
        sizes = (len(island.concepts) + len(bundle.concepts), 1 + len(island.features) + len(bundle.features))
        for number in groups:
            run, counts = bundle.run(number), bundle.groups[number].counts
            if check_increments(run, counts, island.specification, sizes).fault:
                return "increments"
        sequences = {number: sum(bundle.groups[number].counts.by_status) for number in groups}
        drawn = draw_groups(sequences, bundle.sequences if audit is None else audit, seed, bundle.identity)
        for number in drawn:
            if not _is_what_text_gives(bundle, number, island):
                return "audit"
    except ValueError:
        return "opened"
    return ""


def _is_what_text_gives(bundle: Bundle, number: int, island: Island) -> bool:
    sources = SourceOptions.of(
        island.specification, tagger=bundle.tagger, lexicon=island.ever_pos, reading=ReadOptions()
    )
    names = island.vocabulary(bundle.concepts, bundle.features)
    counted, sequences = count_again(bundle.text(number), sources, names)
    group = bundle.groups[number]
    same = sequences == tuple(entry.sequences for entry in group.entries) and counted.counts == group.counts
    return same and equal_runs(counted.run, bundle.run(number))
