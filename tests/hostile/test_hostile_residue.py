"""After a purge no file of the network, beside it or in the user's cache has a word that only the document had."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from distributed import Client
from support.hostile_matrix import CASES, drawn, repeated_by
from support.residue import residue
from support.small_limits import store_all_tables
from support.stored_networks import RUNS, commit_runs, create_network
from support.village import write_village

import giaann_dask as gd
from giaann_dask.models.contexts.table_files import place_of, read_tables
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.training.maintenance import compact_network

IN_CI = 2
# So many that no array of them is a part of a larger file, which could not be looked into.
SECRETS = tuple(
    f"{first}{middle}{last}"
    for first, middle, last in product(("zan", "quet"), ("zi", "xo", "ulk"), ("bar", "tl", "oph"))
)
DOCUMENT = " ".join(
    f"The old {one} miller sold the {other}ly flour of {one}s to the {other}ing baker of a village before the rain. "
    f"A {other} carried the {one} and a {other}ness {one}ward to the {one}ish smith of the {other}less castle."
    for one, other in zip(SECRETS, SECRETS[::-1], strict=True)
)
# Of commits that hold the document, before it is forgotten.
KEPT_BY = ("nothing", "tag", "branch", "checkout", "compaction", "copy")


class Case(NamedTuple):
    """A kind of network, and what else keeps a commit with the document."""

    profile: str
    trace: bool
    kept_by: str

    def __str__(self) -> str:
        return f"{self.profile}{'-trace' if self.trace else ''}-{self.kept_by}"


ALL = [Case(*each) for each in product(("v1", "v2", "contexts"), (False, True), KEPT_BY)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as opened:
        yield opened


def keep(network: gd.Network, case: Case, client: Client) -> None:
    """Let something else keep the last commit, which has the document."""
    store = NetworkStore(network.path)
    if case.kept_by == "tag":
        network.tag("old")
    elif case.kept_by == "branch":
        network.branch("other")
    elif case.kept_by == "compaction":
        compact_network(client, store, keep_commits=2)
    elif case.kept_by == "checkout":
        with store.lock():
            former = store.reset(network.log()[1].identity)
            assert former is not None
            store.reset(former)


def check(case: Case, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    store_all_tables(monkeypatch)
    place, columns = folder / "net", case.profile != "contexts"
    rule = gd.Specification(profile=case.profile, trace=case.trace, regions=2)  # type: ignore[arg-type]
    text, document = write_village(folder / "village.txt", 30), folder / "document.txt"
    document.write_text(DOCUMENT, encoding="utf-8")
    gd.train(text, place, client=client, specification=rule)
    network = gd.train(document, place, client=client)
    keep(network, case, client)
    gd.train(write_village(folder / "more.txt", 10, seed=5), place, client=client)
    if case.kept_by == "copy":
        # Of which nothing is known but what the history of jobs says.
        history = {"job": "backup", "to": str(folder / "copy"), "started": "then"}
        (folder / "copy").mkdir()
        (folder / "net.history.jsonl").write_text(json.dumps(history) + "\n", encoding="utf-8")
    store = NetworkStore(place)
    cached = [each for each in map(store.open, store.other_commits()) if each.manifest().connections and not columns]
    for reader in (*cached, *([] if columns else [store.open("main")])):
        read_tables(*place_of(reader))
    assert columns or residue(SECRETS, folder / "cache")
    assert residue(SECRETS, place)
    report = gd.forget(place, document, client=client, purge=True, renumber=columns, certificate=folder / "certificate")
    assert residue(SECRETS, place, *([folder / "cache"] if (folder / "cache").exists() else [])) == []
    expected = {"certificate", "document.txt", "more.txt", "net", "village.txt"}
    beside = {each.name for each in folder.iterdir()} - {"cache", "copy", "net.history.jsonl"}
    assert beside == expected
    assert network.commit in report.purged or case.kept_by == "compaction"
    assert (str(folder / "copy") in report.elsewhere) == (case.kept_by == "copy")
    assert (str(document) in report.elsewhere) == case.trace
    assert [each["commits"] for each in report.caches] == ([] if columns else [len(cached) + 1])


def test_a_purge_removes_what_is_newer_by_the_clock_of_the_store(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    for runs in (RUNS[:2], RUNS[1:]):
        commit_runs(store, runs)
    snapshots = tmp_path / "net" / "snapshots"
    assert len(list(snapshots.iterdir())) == 4
    later = time.time() + 300
    for file in snapshots.parent.rglob("*"):
        os.utime(file, (later, later))
    with store.lock():
        store.purge()
    assert len(list(snapshots.iterdir())) == 2, "the last one, and the one that Icechunk begins with"


def test_a_sample_of_purges(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    always = [] if CASES else [Case("contexts", True, "checkout")]
    for case in {*drawn(ALL, IN_CI - 1, str), *always}:
        print("again alone:", repeated_by("test_hostile_residue.py", [str(case)]))
        (tmp_path / str(case)).mkdir()
        check(case, client, tmp_path / str(case), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=str)
def test_all_purges(case: Case, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, client, tmp_path, monkeypatch)
