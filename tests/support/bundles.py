"""Bundles that were changed, with and without a new signature of a listed key."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from giaann_dask.islands.archive import Archive, writing_archive
from giaann_dask.islands.auditing import draw_groups
from giaann_dask.islands.bundle import Bundle, BundleWriter, Group, open_bundle
from giaann_dask.islands.counting import RecountRules, count_again, equal_runs
from giaann_dask.islands.definition import Island
from giaann_dask.islands.merging import check_increments
from giaann_dask.islands.signing import read_private_key
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.run import Run
from giaann_dask.text.blocks import FilterOptions

Change = Callable[[Group, PackedRegionRun], tuple[Group, PackedRegionRun]]


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
) -> Path:
    """Write a bundle whose chosen groups are changed, with a valid signature, for its island or another one."""
    bundle = open_bundle(source, island)
    with writing_archive(path) as archive:
        writer = BundleWriter(archive)
        for number, group in enumerate(bundle.groups):
            run = bundle.run(number)
            changed = change(group, run) if number in chosen else (group, run)
            writer.add(*changed, bundle.text(number) if bundle.has_text(number) else None)
        names = {"concepts": bundle.concepts, "features": bundle.features}
        writer.finish(names, signed_for or island, bundle.tagger, read_private_key(key))
    return path


def with_strengths(
    run: PackedRegionRun, change: Callable[[Run], np.ndarray], table: str = "connections"
) -> PackedRegionRun:
    """Return increments with other strengths of the connections or neurons; those of 0 stay."""
    each = unpack(getattr(run, table))
    strength = change(each).astype(np.int64)
    return run._replace(**{table: pack(Run(each.source, each.pointer, each.target, strength))})


def moved(rng: random.Random, run: Run) -> np.ndarray:
    """Return strengths of which one unit of a connection is moved to another one of the same segment."""
    strength = run.strength.astype(np.int64)
    segment = run.target >> 58
    while True:
        one, other = rng.randrange(len(run)), rng.randrange(len(run))
        if one != other and segment[one] == segment[other] and strength[one] > 1:
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
            if check_increments(run, counts, island.specification, sizes)[0]:
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
    rules = RecountRules(
        island.specification,
        island.ever_pos,
        bundle.tagger,
        FilterOptions.of(island.specification),
        island.vocabulary(bundle.concepts, bundle.features),
    )
    counted, sequences = count_again(bundle.text(number), rules)
    group = bundle.groups[number]
    same = sequences == tuple(entry.sequences for entry in group.entries) and counted.counts == group.counts
    return same and equal_runs(counted.run, bundle.run(number))
