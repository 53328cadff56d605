"""Networks and corpora in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support.conflicts import RULE, TEXTS, interrupted
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text
from giaann_dask.errors import OptionError, StoreConflictError, StoreMissingError, StoreUnsharedError, StoreWriteError
from giaann_dask.object_urls import ObjectPath
from giaann_dask.store import places
from giaann_dask.store.corpus import is_corpus
from giaann_dask.store.locking import LockToken, locked, require_place
from giaann_dask.store.places import StorePlace

pytest.importorskip("obstore", reason="needs obstore")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


def test_a_network_in_memory_equals_one_in_a_folder(client: Client, tmp_path: Path) -> None:
    rule = gd.Specification(flags="canonical", regions=2)
    halves = [
        ["The old miller carried the flour to the baker in the village ."],
        ["A young baker with a large basket sings a song in the town ."],
    ]
    options = {"client": client, "specification": rule}
    for half in halves:
        places = "memory://nets/village", tmp_path / "village"
        networks = [gd.train(half, place, **options) for place in places]
    files = [network.export(tmp_path / f"{i}.npz").connections for i, network in enumerate(networks)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert networks[0].generate("The miller").text == networks[1].generate("The miller").text
    assert networks[0].describe()["bytes_on_disk"] > 500
    assert [each.message for each in networks[0].log()] == [each.message for each in networks[1].log()]
    gd.forget("memory://nets/village", halves[1], client=client)
    alone = gd.train(halves[0], tmp_path / "alone", **options)
    again = gd.open("memory://nets/village").export(tmp_path / "again.npz").connections
    assert again.read_bytes() == alone.export(tmp_path / "alone.npz").connections.read_bytes()


def test_a_corpus_in_memory(client: Client) -> None:
    corpus = gd.encode(sample_test_text(), "memory://corpus", client=client)
    assert is_corpus("memory://corpus")
    assert gd.train(corpus, "memory://trained", client=client).training_report.sequences == len(corpus) == 40


def test_one_writer_at_a_time() -> None:
    with locked(ObjectPath("memory://held")) as held:
        require_place(held.mark())
        with pytest.raises(StoreWriteError, match="is being written by"), locked(ObjectPath("memory://held")):
            pass
    with locked(ObjectPath("memory://held")):
        pass


def test_what_another_process_has_in_memory_is_not_there() -> None:
    with pytest.raises(StoreUnsharedError, match=r"does not see memory://elsewhere; .* and 0 workers"):
        require_place(LockToken("memory://elsewhere", "token of another process"))
    with pytest.raises(StoreMissingError, match="no network at memory://elsewhere"):
        gd.open("memory://elsewhere")
    with pytest.raises(OptionError, match="memory://NAME"):
        StorePlace("memory://")


def export(network: gd.Network, folder: Path, name: str) -> bytes:
    return network.export(folder / f"{name}.npz").connections.read_bytes()


@pytest.mark.parametrize("rule", [{"flags": "canonical", "trace": True}, {"profile": "contexts"}])
def test_a_commit_that_came_second_is_added_to_the_first(rule: dict[str, Any], client: Client, tmp_path: Path) -> None:
    place = f"memory://second/{len(rule)}"
    common = {"client": client, "specification": gd.Specification(**RULE, **rule)}
    # The first sentence of the text alone, so that a part of it is continued.
    text = [" ".join(TEXTS["b"])]
    gd.train(text, place, options=gd.TrainingOptions(max_sequences=1), **common)
    network = interrupted(text, place, client, lambda: gd.train(TEXTS["c"], place, **common) and None, **rule)
    local = gd.train(text + TEXTS["c"], tmp_path / "local", **common)
    assert export(network, tmp_path, "memory") == export(local, tmp_path, "folder")
    assert "with the work of another process" in network.log()[0].message
    assert [network.manifest.by_status, network.manifest.tokens] == [local.manifest.by_status, local.manifest.tokens]
    reader = reader_of(network)
    assert [(each.sequences, each.complete) for each in reader.ledger()] == [(2, True), (1, True)]
    origins = reader.origins()
    assert (origins and origins.ranges) == (rule.get("trace") and [(0, 0, 1), (1, 0, 1), (0, 1, 1)])
    # The network in which it was kept is gone.
    kept = [name for name in places._places if ".kept-" in name]
    assert not [name for name in kept if StorePlace(f"memory://{name}").exists()]


@pytest.mark.parametrize(
    ("rule", "other", "said", "held"),
    [
        ({"flags": "canonical"}, "b", "were counted by the other process, too", "b"),
        ({"flags": "history"}, "c", "delimiters by the order of its text", "ab"),
    ],
)
def test_a_commit_that_cannot_be_added_is_kept(
    rule: dict[str, Any], other: str, said: str, held: str, client: Client, tmp_path: Path
) -> None:
    place, common = f"memory://refused/{other}", {"client": client, "specification": gd.Specification(**RULE, **rule)}
    committed = gd.train(TEXTS["a"], place, **common).manifest.sequences
    with pytest.raises(StoreConflictError, match=said) as raised:
        interrupted(TEXTS["b"], place, client, lambda: gd.train(TEXTS[other], place, **common) and None, **rule)
    kept = gd.open(raised.value.remedy.partition("kept in the network ")[2].partition(": run")[0])
    for name in held:
        local = gd.train(TEXTS[name], tmp_path / "local", **common)
    assert export(kept, tmp_path, "kept") == export(local, tmp_path, "trained")
    assert gd.open(place).manifest.sequences == committed + len(TEXTS[other])


def test_a_place_needs_a_name() -> None:
    for name in ("memory://", "s3://", "s3://bucket"):
        for call in (gd.open, lambda place: gd.train(sample_test_text(), place)):
            with pytest.raises(OptionError, match=f"the place '{name}'; expected a folder"):
                call(name)


def test_a_command_says_that_what_it_writes_into_memory_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(sample_test_text()), "--network", "memory://gone", "--workers", "0"]
    assert run([*arguments, "--set", "regions=1"]) == 0
    assert "memory://gone is in the memory of this command, and gone when it ends" in capsys.readouterr().err
