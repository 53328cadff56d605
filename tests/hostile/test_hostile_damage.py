"""A damaged store answers as if it were whole, or with one line that refuses; never with another number."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from distributed import Client
from support.damaged_stores import KINDS, STORES, Case, Failed, Refused, Stores, answers, build, damaged_copy
from support.hostile_matrix import drawn, repeated_by

import giaann_dask as gd


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def stores(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    kept = os.environ.get("GIAANN_HOSTILE_STORES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("hostile")
    folder.mkdir(parents=True, exist_ok=True)
    built = build(folder, client)
    for store, expected in built.expected.items():
        wrong = {name: value for name, value in expected.items() if isinstance(value, Refused | Failed)}
        assert not wrong, store
    return built


def wrongs_of(case: Case, stores: Stores, client: Client, folder: Path, refused: Counter[str]) -> list[str]:
    """Return what is wrong with the answers of a damaged store, and count the operations that were refused."""
    damaged_copy(stores, case, folder / case.store)
    wrongs = []
    for name, found in answers(stores, case.store, folder / case.store, client, folder).items():
        expected = stores.expected[case.store][name]
        if isinstance(found, Refused):
            refused[name] += 1
            if "\n" in found.error:
                wrongs.append(f"{name}: more than a line: {found.error}")
        elif isinstance(found, Failed):
            wrongs.append(f"{name}: {found.trace.strip().splitlines()[-1]}")
        elif found != expected:
            wrongs.append(f"{name}: silently another answer{difference(expected, found)}")
    return wrongs


def difference(expected: object, found: object) -> str:
    """Return which values of an answer differ, where it has names."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return ""
    return f" ({', '.join(name for name in expected if expected[name] != found.get(name))})"


def check(cases: Sequence[Case], stores: Stores, client: Client, folder: Path) -> Counter[str]:
    """Damage a copy of a store for every case; return how often each operation was refused."""
    failures: dict[str, list[str]] = {}
    refused: Counter[str] = Counter()
    for number, case in enumerate(cases):
        # Shown when a case hangs or ends this process.
        print(case.identity, flush=True)
        place = folder / str(number)
        if wrongs := wrongs_of(case, stores, client, place, refused):
            failures[case.identity] = wrongs
        shutil.rmtree(place)
    told = "\n".join(f"{identity}\n  {'; '.join(wrongs)}" for identity, wrongs in failures.items())
    command = repeated_by("test_hostile_damage.py", list(failures)[:20], stores.folder)
    assert not failures, f"{len(failures)} of {len(cases)} cases failed:\n{told}\ntry them again alone: {command}"
    return refused


def test_a_sample_of_damage(stores: Stores, client: Client, tmp_path: Path) -> None:
    """One of each kind, of any store."""
    by_kind = [[case for store in STORES for case in stores.cases(store, kind)] for kind in KINDS]
    chosen = [case for cases in by_kind for case in drawn(cases, 1, lambda case: case.identity)]
    check(chosen, stores, client, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_all_damage(store: str, kind: str, stores: Stores, client: Client, tmp_path: Path) -> None:
    refused = check(stores.cases(store, kind), stores, client, tmp_path)
    # Else a copy was answered for by something that remembers the original.
    assert set(refused) == set(stores.expected[store]) or kind == "append"
